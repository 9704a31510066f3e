#!/bin/bash
# bare.sh - what README says to a newcomer, typed on a Debian 12 with nothing on it.
#
#   tests/tools/bare.sh DIR [REPOSITORY]     as root, with debootstrap; DIR is made, and left for a look when something fails
#
# Debian's least packages stand in DIR/root, and a shell in namespaces of its own (mounts, processes, names; the network is this
# machine's, as for anybody who clones) types the lines of README's block, on a terminal. Then the page is opened by the browser that
# `make peers` brings, there, and each form of `make demo` that README names is run. Prints what it saw as NAME=VALUE, last of it
# `build` (seconds until cargo was done) and `page` (seconds from then until the browser showed all hosts).
#
#   BARE_RUST=HOME    .cargo and .rustup of this folder stand for the line of rustup, where its site is not reached
#   BARE_MIRROR=URL   Debian's mirror
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(realpath -m "${1:?bare.sh DIR [REPOSITORY]}")
repository=${2:-$here}
mirror=${BARE_MIRROR:-http://deb.debian.org/debian}
root=$dir/root
fail() { echo "bare: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "needs root"
command -v debootstrap >/dev/null || fail "debootstrap is missing (Debian: apt install debootstrap)"
[ ! -e "$root" ] || fail "$root is there already: remove it"

# --- the machine
mkdir -p "$dir"
debootstrap --variant=minbase bookworm "$root" "$mirror" > "$dir/debootstrap.log" 2>&1 || fail "see $dir/debootstrap.log"
echo "packages=$(chroot "$root" dpkg-query -f '.\n' -W | wc -l)"
cp /etc/resolv.conf "$root/etc/resolv.conf"
echo bare > "$root/etc/hostname"
printf '127.0.0.1 localhost bare\n' > "$root/etc/hosts"
git clone -q --bare --no-local "$repository" "$root/srv/tortie.git"
# Whoever reads this machine's branch types the name of no branch.
git --git-dir="$root/srv/tortie.git" update-ref refs/heads/main "$(git -C "$repository" rev-parse HEAD)"
git --git-dir="$root/srv/tortie.git" symbolic-ref HEAD refs/heads/main

# --- what README says: the block that begins with apt
awk '/^```/ { if (inside && found) exit; inside = !inside; found = 0; next }
     inside && /^\$ sudo apt (update|install)/ && !seen { found = 1; seen = 1 }
     inside && found && /^\$ / { sub(/^\$ /, ""); print }' "$here/README.md" > "$dir/lines"
[ "$(tail -n 1 "$dir/lines")" = "make demo" ] || fail "README's block for a bare Debian does not end with make demo: $(cat "$dir/lines")"
grep -q '^git clone https://[^ ]*/tortie &&' "$dir/lines" || fail "README's block does not clone"
# As root, who has no sudo.
sed -i 's/\bsudo //g; s,git clone https://[^ ]*,git clone /srv/tortie.git,' "$dir/lines"
if [ -n "${BARE_RUST:-}" ]; then
  toolchain=$(sed -n 's/^default_toolchain = "\(.*\)"/\1/p' "$BARE_RUST/.rustup/settings.toml")
  mkdir -p "$root/root/.rustup/toolchains"
  cp -a "$BARE_RUST/.cargo" "$root/root/"
  cp -a "$BARE_RUST/.rustup/settings.toml" "$root/root/.rustup/"
  cp -a "$BARE_RUST/.rustup/toolchains/$toolchain" "$root/root/.rustup/toolchains/"
  sed -i 's,^curl .*rustup.* && \. ,. ,' "$dir/lines"
  echo "rust=$toolchain, brought along"
fi
# The block is typed as it stands, each line told before it is run.
{ echo 'trap "echo typed: ended with \$?" EXIT; set -e; cd'; while read -r line; do printf 'echo %q\n%s\n' "\$ $line" "$line"; done < "$dir/lines"; } > "$root/srv/typed"

# --- what is looked at meanwhile, there
cat > "$root/srv/watch" <<'WATCH'
set -euo pipefail
cd /root
fail() { echo "bare: $*" >&2; tail -n 60 /srv/said >&2; exit 1; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f\n", b - a }'; }
until_said() { # TEXT: until the terminal shows it
  while ! grep -q "$1" /srv/said; do
    ! grep -q '^typed: ended' /srv/said || fail "ended without: $1"
    sleep 0.05
  done
}
mkfifo /srv/keys
: > /srv/said
begin=$(now)
script -qfc 'bash /srv/typed' /srv/said <>/srv/keys >/dev/null & terminal=$!
until_said '^\$ make demo'
echo "before=$(since "$begin")"
until_said 'Finished .* profile'
echo "build=$(since "$begin")"
built=$(now)
until_said 'Page: http'
echo "demo_downloads=$(sed -n 's/^peers: \(installing\|downloading\)/\1/p' /srv/said | tr -d '\r' | paste -sd ';')"
# The browser is among what the tests need.
. ~/.cargo/env
make -s -C tortie peers 2>> /srv/browser || fail "make peers"
page=$(sed -n 's,.*Page: \(http://[0-9.:]*\).*,\1,p' /srv/said | head -n 1)
browser() { /root/tortie/target/peers/bin/chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "$@" 2>>/srv/browser; }
for host in host1 host2 host3; do
  for try in 1 2 3 4 5; do
    dom=$(browser --dump-dom "$page/") || true
    grep -q "href=\"/$host/\">$host</a></th><td>ready</td>" <<< "$dom" && break
    [ "$try" != 5 ] || fail "$page does not show $host ready: $dom"
  done
done
echo "page=$(since "$built")"
# The page of a host never ends, as its stream of events does not: its title has the verdict once it has asked.
browser --remote-debugging-port=9222 --user-data-dir=/srv/profile "$page/host1/" & open=$!
for try in $(seq 100); do
  title=$(curl -s http://127.0.0.1:9222/json | sed -n 's/.*"title": "\(.*host1.*\)",/\1/p') || true
  [[ "$title" == *eady* ]] && break
  [ "$try" != 100 ] || fail "$page/host1/ has the title: $(curl -s http://127.0.0.1:9222/json)"
  sleep 0.1
done
kill "$open"
echo "title=$title"
echo "host_page=$(since "$built")"
routes=$(echo 'ip route show proto 179' | tortie/target/debug/tortie demo sh host1)
grep -q '10.244.2.0/26' <<< "$routes" || fail "a shell on host1 sees: $routes"
echo "q" > /srv/keys
until_said '^typed: ended'
# It would go on reading keys.
kill "$terminal" 2>/dev/null || true
grep -q '^typed: ended with 0' /srv/said || fail "make demo failed"
grep -q 'of the demo removed *ok' /srv/said || fail "something is left"

# --- the other forms, as README names them
cd tortie
for args in "--router frr --v6 --hosts 5" "--router bird" "--router gobgp" "--router openbgpd" "--router tortie" "-o json"; do
  begin=$(now)
  make -s demo ARGS="--assert $args" < /dev/null > /srv/demo 2>&1 || { cat /srv/demo >&2; fail "make demo ARGS=\"$args\""; }
  echo "demo $args=$(since "$begin")"
done
WATCH

# --- and go
cat > "$dir/enter" <<'ENTER'
set -e
cd "$1"
mount --make-rprivate /
mount --bind . . && cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
mkdir dev/pts dev/shm
for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
  set -- $node; mknod -m 666 "dev/$1" c "$2" "$3"
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mount -t tmpfs -o mode=1777 tmpfs dev/shm
hostname bare
pivot_root . .
umount -l .
cd /
exec env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash /srv/watch
ENTER
unshare --mount --uts --ipc --pid --fork --kill-child bash "$dir/enter" "$root" || fail "what was typed and shown: $root/srv/said"
rm -rf "$dir"

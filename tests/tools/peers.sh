#!/bin/bash
# peers.sh - installs what a build needs, and unpacks the daemons that the demo and the tests run below target/peers.
#
#   tests/tools/peers.sh [DIR] [build|static|demo|all]     DIR: target/peers, then DIR/bin/NAME runs NAME
#
#   build   a C compiler, protoc and ip: installed where they are missing
#   static  the same, and a C compiler for the C library musl
#   demo    as build, and BIRD (about 6 MB)
#   all     as demo, a C++ compiler for libFuzzer, and all daemons and clients of the tests (the default; about 550 MB)
#
# Daemons are not installed: their packages are downloaded and unpacked, so no service is started or enabled, no user is added
# and the machine's network stays as it is. Only what a build needs from the system itself is installed (in CI systemd, too), with
# sudo when this is not root. Each download is announced with its size. Done once, the script returns in a few milliseconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DIR=$(realpath -m "${1:-target/peers}")
SET=${2:-all}
STAMP="peers 20"
PATH=$PATH:/usr/sbin:/sbin
say() { echo "peers: $*" >&2; }
fail() { say "$*"; exit 1; }
case "$SET" in build | static | demo | all) ;; *) fail "$SET: there is build, static, demo and all" ;; esac
has() { command -v "$1" >/dev/null; }
# protoc with the types that come with it: Debian keeps them in a package of their own.
has_protoc() {
  has protoc && echo 'syntax = "proto3"; import "google/protobuf/descriptor.proto"; import "google/protobuf/struct.proto";' \
    | protoc --descriptor_set_out=/dev/null --proto_path=/dev /dev/stdin >/dev/null 2>&1
}
# A systemd is started in a machine of namespaces, from this machine's files (tests/cli/packaging/machine.rs). Where there is none, that test
# is skipped; only CI, which skips nothing, has it installed. That starts nothing.
systemd() { [ -z "${CI:-}" ] || [ -x /lib/systemd/systemd ]; }
# The set of an earlier run contains this one.
unpacked() {
  case "$SET:$(cat "$DIR/stamp" 2>/dev/null)" in
    "build:"* | "static:"* | "demo:$STAMP"* | "all:$STAMP all") return 0 ;;
    *) return 1 ;;
  esac
}
installed() { has cc && has_protoc && has ip && { [ "$SET" != static ] || has musl-gcc; } && { [ "$SET" != all ] || { has c++ && systemd; }; }; }
if unpacked && installed; then exit 0; fi

PACKAGES=bird2
all_packages() {
  PACKAGES="bird2 frr gobgpd openbgpd exabgp etcd-server etcd-client iproute2 iputils-ping user-mode-linux kmod bgpdump mrtparse nftables iptables ipset"
  # promtool, which reads metrics, rules and their tests.
  PACKAGES="$PACKAGES prometheus"
  # Who starts containers: tests/plugins/engines. Go is here for one program, which is built below.
  PACKAGES="$PACKAGES docker.io containerd runc podman conmon containernetworking-plugins busybox-static"
  PACKAGES="$PACKAGES golang-go golang-github-appc-cni-dev python3-grpcio python3-protobuf"
  # Whose tab keys are pressed: tests/cli/completion.rs. The static one, because a shell's modules stand at one place for good.
  PACKAGES="$PACKAGES zsh-static zsh-common fish"
  # A machine with ipip and nf_tables at once: tests/tools/qemu-run.sh.
  [ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ] || PACKAGES="$PACKAGES qemu-system-x86 linux-image-cloud-amd64"
  # Who writes a Calico 3 store in OpenStack: tests/openstack. Two of its parts come from PyPI, by pip.
  PACKAGES="$PACKAGES python3-pip python3-futurist python3-netaddr python3-pbr python3-requests python3-six"
  # What opens the page: tests/cli/page.
  PACKAGES="$PACKAGES chromium-headless-shell"
}
case "$SET" in build | static) PACKAGES= ;; demo) ;; all) all_packages ;; esac
# Packages and megabytes (10^6 octets) that apt would download: the output of --print-uris.
sizes() { awk -v q="'" 'index($0, q) == 1 { n++; size += $3 } END { printf "%d package%s, %.1f MB", n, n == 1 ? "" : "s", size / 1e6 }'; }
has apt-get && has dpkg-deb \
  || fail "this is no Debian: install gcc, protobuf-compiler and iproute2, and put ${PACKAGES:-nothing else} into PATH yourself"

# --- what has to be installed for real
missing=()
has cc || missing+=(gcc libc6-dev)
[ "$SET" != all ] || has c++ || missing+=(g++)
has make || missing+=(make)
[ "$SET" != static ] || has musl-gcc || missing+=(musl-tools)
has_protoc || missing+=(protobuf-compiler libprotobuf-dev)
has ip || missing+=(iproute2)
[ "$SET" != all ] || systemd || missing+=(systemd)
if [ ${#missing[@]} -gt 0 ]; then
  sudo=()
  if [ "$(id -u)" != 0 ]; then
    has sudo || fail "needs ${missing[*]}: become root or install them, then run this again"
    sudo=(sudo)
  fi
  install=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends)
  say "installing ${missing[*]}: $("${install[@]}" --print-uris install "${missing[@]}" 2>/dev/null | sizes)"
  "${install[@]}" install "${missing[@]}" >/dev/null 2>&1 || {
    "${install[@]}" update >/dev/null || fail "apt-get update failed: is a package mirror reachable?"
    "${install[@]}" install "${missing[@]}" >/dev/null || fail "could not install ${missing[*]}"
  }
fi

# --- what is only unpacked
[ -n "$PACKAGES" ] || exit 0
mkdir -p "$DIR"
exec 9>"$DIR/lock"; flock 9
if unpacked; then exit 0; fi
rm -rf "$DIR/root" "$DIR/bin" "$DIR/deb"; mkdir -p "$DIR/root" "$DIR/bin" "$DIR/deb"
# The package manager is asked as if this machine had its essential packages and what those need, and nothing else. The list then names all
# that the peers need: what the machine has besides, Go or a library, is in another place and another version elsewhere.
awk -v RS= -v ORS='\n\n' '
  { count = split($0, line, "\n"); name = ""; needs[NR] = ""; essential = 0
    for (i = 1; i <= count; i++) {
      if (line[i] ~ /^Package: /) name = substr(line[i], 10)
      else if (line[i] ~ /^Essential: yes/) essential = 1
      else if (line[i] ~ /^(Pre-)?Depends: /) { sub(/^[^:]*: /, "", line[i]); needs[NR] = needs[NR] "," line[i] }
      else if (line[i] ~ /^Provides: /) { sub(/^[^:]*: /, "", line[i]); n = split(line[i], p, ","); for (j = 1; j <= n; j++) { gsub(/^ *| *\(.*| *$/, "", p[j]); by[p[j]] = by[p[j]] " " NR } }
    }
    text[NR] = $0; by[name] = by[name] " " NR; if (essential) todo[++last] = NR }
  END {
    for (at = 1; at <= last; at++) {
      if (kept[todo[at]]++) continue
      n = split(needs[todo[at]], dep, /[,|]/)
      for (i = 1; i <= n; i++) {
        gsub(/^ *| *\(.*|:.*| *$/, "", dep[i]); m = split(by[dep[i]], found, " ")
        for (j = 1; j <= m; j++) if (!kept[found[j]]) todo[++last] = found[j]
      }
    }
    for (i = 1; i <= NR; i++) if (kept[i]) print text[i]
  }
' /var/lib/dpkg/status > "$DIR/status"
apt=(apt-get -q -y -o "Dir::State::status=$DIR/status" -o Debug::NoLocking=1 -o APT::Sandbox::User=
     -o APT::Get::Assume-Yes=1 --no-install-recommends)
plan() { "${apt[@]}" -s install $PACKAGES 2>"$DIR/apt.log" | awk '$1 == "Inst" { v = $3; if (v ~ /^\[/) v = $4; sub(/^\(/, "", v); print $2 "=" v }'; }
# From nothing each time: of two versions of a package, half of one would be unpacked over the other.
get() {
  local p pid
  rm -f "$DIR"/deb/*.deb
  p=$(plan) && [ -n "$p" ] || return 1
  say "downloading $("${apt[@]}" --print-uris download $p 2>/dev/null | sizes)"
  (cd "$DIR/deb" && "${apt[@]}" download $p >"$DIR/apt.log" 2>&1) & pid=$!
  while sleep 1; kill -0 $pid 2>/dev/null; do
    if [ $((SECONDS % 10)) = 0 ]; then say "  $(($(du -sb "$DIR/deb" | cut -f1) / 1000000)) MB are here"; fi
  done
  wait $pid
}
if ! get; then
  # Lists are missing or old. A private copy needs no root and leaves the machine's own lists alone.
  say "reading the package lists"
  mkdir -p "$DIR/apt/lists/partial" "$DIR/apt/cache/archives/partial"
  apt+=(-o "Dir::State::Lists=$DIR/apt/lists" -o "Dir::Cache=$DIR/apt/cache")
  "${apt[@]}" update >"$DIR/apt.log" 2>&1 || { cat "$DIR/apt.log" >&2; fail "no package mirror reachable"; }
  get || { cat "$DIR/apt.log" >&2; fail "could not download $PACKAGES"; }
fi
say "unpacking"
printf '%s\0' "$DIR"/deb/*.deb | xargs -0 -n 4 -P 2 sh -c 'for deb; do dpkg-deb -x "$deb" "$0" || exit 255; done' "$DIR/root"
rm -rf "$DIR/deb" "$DIR/apt" "$DIR/status"

# --- one wrapper a program. It finds its libraries beside itself, so the folder can be moved.
lib=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || cc -dumpmachine)
wrap() { # NAME PATH-BELOW-ROOT [LINE-BEFORE-EXEC]
  [ -x "$DIR/root/$2" ] || fail "$2 was not in the packages"
  cat > "$DIR/bin/$1" <<WRAP
#!/bin/sh
r=\${0%/*}/../root
LD_LIBRARY_PATH=\$r/usr/lib/$lib:\$r/usr/lib/$lib/frr:\$r/lib/$lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
${3-}
exec "\$r/$2" ${4-}"\$@"
WRAP
  chmod +x "$DIR/bin/$1"
}
first() { local p; for p in "$@"; do [ -x "$DIR/root/$p" ] && { echo "$p"; return; }; done; echo "$1"; }
wrap bird usr/sbin/bird
wrap birdc usr/sbin/birdc
if [ "$SET" = demo ]; then
  echo "$STAMP demo" > "$DIR/stamp"
  say "ready: BIRD; make test unpacks more daemons (about 550 MB)"
  exit 0
fi
for d in zebra bgpd bfdd staticd; do wrap "frr-$d" "usr/lib/frr/$d" "" "--moduledir \"\$r/usr/lib/$lib/frr/modules\" "; done
wrap vtysh usr/bin/vtysh
wrap gobgpd usr/bin/gobgpd
[ -x "$DIR/root/usr/bin/gobgp" ] && wrap gobgp usr/bin/gobgp
wrap openbgpd "$(first usr/sbin/bgpd usr/sbin/openbgpd)"
wrap bgpctl usr/sbin/bgpctl
wrap bgpdump usr/bin/bgpdump
wrap etcd usr/bin/etcd
wrap etcdctl usr/bin/etcdctl
wrap ip "$(first usr/sbin/ip bin/ip sbin/ip usr/bin/ip)"
wrap ping "$(first usr/bin/ping bin/ping)"
wrap nft usr/sbin/nft
wrap promtool usr/bin/promtool
rm -f "$DIR/root/usr/bin/prometheus"
# What other programs of a host use: tests see that it is left alone.
wrap iptables-nft usr/sbin/xtables-nft-multi "export XTABLES_LIBDIR=\$r/usr/lib/$lib/xtables" "iptables "
wrap iptables-nft-save usr/sbin/xtables-nft-multi "export XTABLES_LIBDIR=\$r/usr/lib/$lib/xtables" "iptables-save "
wrap ipset "$(first usr/sbin/ipset sbin/ipset)"
wrap zsh "$(first bin/zsh-static usr/bin/zsh-static)" 'z=$r/usr/share/zsh/functions; FPATH=$(find "$z" -type d | paste -sd :); export FPATH'
wrap fish usr/bin/fish
# One program under many names: it looks at the name it is called by.
for name in insmod modprobe; do ln -sf kmod "$DIR/root/$(dirname "$(first usr/bin/kmod bin/kmod)")/$name"; done
wrap insmod "$(first usr/bin/insmod bin/insmod)"
wrap modprobe "$(first usr/bin/modprobe bin/modprobe)"
wrap linux.uml usr/bin/linux.uml 'export UML_MODULES=${UML_MODULES:-$(cd "$r/usr/lib/uml/modules" && pwd)}'
if [ -e "$DIR/root/usr/bin/qemu-system-x86_64" ]; then
  wrap qemu-system-x86_64 usr/bin/qemu-system-x86_64 "" '-L "$r/usr/share/qemu" -L "$r/usr/share/seabios" '
  wrap virtiofsd usr/lib/qemu/virtiofsd
  ln -sf kmod "$DIR/root/$(dirname "$(first usr/bin/kmod bin/kmod)")/depmod"
  wrap depmod "$(first usr/bin/depmod bin/depmod)"
  for release in $(ls "$DIR/root/lib/modules"); do "$DIR/bin/depmod" -b "$DIR/root" "$release"; done
fi
python=/usr/bin/python3; [ -x $python ] || python='$r/usr/bin/python3'
cat > "$DIR/bin/exabgp" <<WRAP
#!/bin/sh
r=\${0%/*}/../root
PYTHONPATH=\$r/usr/lib/python3/dist-packages\${PYTHONPATH:+:\$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH PYTHONDONTWRITEBYTECODE
exec "$python" -m exabgp "\$@"
WRAP
sed 's,-m exabgp,"$r/usr/bin/mrt2bgpdump",' "$DIR/bin/exabgp" > "$DIR/bin/mrt2bgpdump"
chmod +x "$DIR/bin/exabgp" "$DIR/bin/mrt2bgpdump"
# --- the browser: its fonts are the system's, or came with it
cat > "$DIR/root/fonts.conf" <<'FONTS'
<?xml version="1.0"?>
<fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<dir>/usr/share/fonts</dir><dir prefix="relative">usr/share/fonts</dir><cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
FONTS
wrap chromium usr/lib/chromium/chromium-headless-shell \
  "LD_LIBRARY_PATH=\$LD_LIBRARY_PATH:\$r/usr/lib/$lib/pulseaudio FONTCONFIG_FILE=\$r/fonts.conf; export FONTCONFIG_FILE"
# --- container engines, their network plugins, and two small clients of our own
for name in dockerd docker docker-proxy docker-init containerd containerd-shim-runc-v2 ctr runc podman conmon busybox; do
  wrap "$name" "$(first "usr/bin/$name" "usr/sbin/$name" "bin/$name" "usr/libexec/docker/$name" "usr/lib/docker/$name")"
done
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  wrap "$name" usr/sbin/xtables-nft-multi "export XTABLES_LIBDIR=\$r/usr/lib/$lib/xtables" "$name "
done
ln -sfn ../root/usr/lib/cni "$DIR/bin/cni"
go=$(printf '%s\n' "$DIR"/root/usr/lib/go-*/ | sort -V | tail -1)
[ -x "$go/bin/go" ] || fail "no Go was in the packages (usr/lib/go-*): apt-get -s install golang-go says which package has it"
mkdir -p "$DIR/go"
GOROOT=${go%/} GOPATH="$DIR/root/usr/share/gocode" GOCACHE="$DIR/go" GO111MODULE=off CGO_ENABLED=0 GOFLAGS=-trimpath \
  "$go/bin/go" build -o "$DIR/bin/cnirun" tests/tools/cnirun.go || fail "tests/tools/cnirun.go does not compile"
rm -rf "$DIR/go" "$DIR"/root/usr/lib/go-* "$DIR"/root/usr/share/go-* "$DIR/root/usr/share/gocode"
# --- the writer of OpenStack: what Debian has not comes from PyPI, without the packages that it would pull in (all of Neutron)
PYTHONPATH="$DIR/root/usr/lib/python3/dist-packages" PYTHONDONTWRITEBYTECODE=1 "${python/\$r/$DIR/root}" -m pip install -q --no-deps \
  --no-compile --root-user-action=ignore --target "$DIR/root/pypi" networking-calico==3.12.0 etcd3gw==0.2.6 >"$DIR/pip.log" 2>&1 \
  || fail "pip could not install networking-calico: $(tail -1 "$DIR/pip.log")"
# Runs tests/openstack/neutron.py, which its caller names.
sed "s,-m exabgp ,,; s,dist-packages,dist-packages:\$r/pypi," "$DIR/bin/exabgp" > "$DIR/bin/calico-neutron"
chmod +x "$DIR/bin/calico-neutron"
protoc -Itests/tools "--python_out=$DIR/root/usr/lib/python3/dist-packages" tests/tools/cri.proto
cp tests/tools/cri.py "$DIR/root/usr/lib/python3/dist-packages/"
sed "s,-m exabgp,-m cri,; s,^export PYTHONPATH,LD_LIBRARY_PATH=\$r/usr/lib/$lib; export LD_LIBRARY_PATH PYTHONPATH," \
  "$DIR/bin/exabgp" > "$DIR/bin/cri"
chmod +x "$DIR/bin/cri"
echo "$STAMP all" > "$DIR/stamp"
say "ready: $(ls "$DIR/bin" | tr '\n' ' ')"

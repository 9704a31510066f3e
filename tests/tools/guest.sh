# guest.sh - what uml-run.sh and qemu-run.sh have in common; they source it. A guest sees this machine's files below an
# overlay in its memory, runs one command as root, and its output and exit status come back through files in $box.
set -u
usage() { sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
quote() { printf '%q ' "$@"; }

# Reads the options, sets memory, limit, verbose, cpus, binds, env and command, and makes $box.
take_options() {
  memory=512M limit=120 verbose=0 cpus=1 binds=() env=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  local option dir name=${0##*/}
  while getopts 'm:t:b:e:c:v' option; do
    case $option in
      m) memory=$OPTARG ;;
      t) limit=$OPTARG ;;
      b) binds+=("$(realpath -e -- "$OPTARG")") || { echo "$name: -b $OPTARG: no such folder" >&2; exit 2; } ;;
      e) case $OPTARG in *=*) env+=("$OPTARG") ;; *) [ -n "${!OPTARG+set}" ] && env+=("$OPTARG=${!OPTARG}") ;; esac ;;
      c) cpus=$OPTARG ;;
      v) verbose=1 ;;
      *) usage ;;
    esac
  done
  shift $((OPTIND - 1))
  [ $# -gt 0 ] || usage
  me=${name%.sh}
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  peers=${TORTIE_PEERS:-$here/target/peers/bin}
  # The guest mounts empty folders over these: what is below one of them has to be shown again.
  for dir in "$here" "$peers"; do
    dir=$(realpath -e -- "$dir") || continue
    case $dir/ in /tmp/* | /var/tmp/* | /run/*) binds+=("$dir") ;; esac
  done
  PATH=$PATH:/usr/sbin:/sbin
  modprobe=$(command -v modprobe || echo "$peers/modprobe")
  [ -x "$modprobe" ] || { echo "$me: no modprobe: run make peers" >&2; exit 125; }
  # Everything that guest and host tell each other lies here: scripts in, output and status out.
  box=$(mktemp -d "${TMPDIR:-/tmp}/$me.XXXXXX")
  trap 'rm -rf "$box"' EXIT
  : > "$box/out"; : > "$box/err"
  {
    echo '#!/bin/bash'
    echo "cd $(quote "$PWD") 2>/dev/null || cd /"
    echo "exec env -i HOME=/root TERM=${TERM:-dumb} $(quote "${env[@]}") $(quote "$@")"
  } > "$box/command"
}

# The last program before the command: makes what looks like a freshly started machine.
#   write_guest RELEASE MODULES BIND      BIND mounts this machine's "$dir" there
write_guest() {
  cat > "$box/guest" <<GUEST
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
end() { echo "\$1" > $(quote "$box/status.new"); mv $(quote "$box/status.new") $(quote "$box/status"); sync; echo o > /proc/sysrq-trigger; sleep 9; }
umount -l /mnt 2>/dev/null; mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm /dev/net; mount -t devpts devpts /dev/pts; mount -t tmpfs none /dev/shm
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
[ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
for dir in /tmp /var/tmp /run; do mount -t tmpfs -o mode=1777 none \$dir; done
mkdir -p /run/netns /run/lock
for dir in $(quote "$box" "${binds[@]}"); do
  mkdir -p "\$dir"; $3 || end 125
done
mkdir -p /lib/modules; [ -e /lib/modules/$1 ] || ln -s $(quote "$2/$1") /lib/modules/$1
# The kernel calls this when it misses a module.
echo $(quote "$modprobe") > /proc/sys/kernel/modprobe
$(quote "$modprobe") -q ipv6
ip link set lo up; hostname ${me%-run}
setsid /bin/bash $(quote "$box/command") </dev/null >> $(quote "$box/out") 2>> $(quote "$box/err")
end \$?
GUEST
  chmod +x "$box/guest"
}

# Passes on what the guest says until it has ended, kills the machine's process groups, and exits as the command did.
#   await MACHINE [GROUP]...
await() {
  local machine=$1 tails=() verdict=125 group
  tail -q -c +1 -s 0.05 -f --pid="$machine" "$box/out" & tails+=($!)
  tail -q -c +1 -s 0.05 -f --pid="$machine" "$box/err" >&2 & tails+=($!)
  trap 'limit=0' INT TERM
  while kill -0 "$machine" 2>/dev/null; do
    if [ -e "$box/status" ]; then
      for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$machine" 2>/dev/null || break; sleep 0.1; done
      break
    fi
    [ $SECONDS -lt "$limit" ] || { verdict=124; break; }
    sleep 0.05
  done
  for group; do kill -KILL -- "-$group" 2>/dev/null; { wait "$group"; } 2>/dev/null; done
  wait "${tails[@]}" 2>/dev/null
  [ $verbose = 1 ] && cat "$box/console" >&2
  [ -e "$box/status" ] && exit "$(cat "$box/status")"
  if [ $verdict = 124 ]; then echo "$me: not done after $limit s" >&2; else
    echo "$me: the machine ended without a result:" >&2; tail -n 15 "$box/console" >&2
  fi
  exit $verdict
}

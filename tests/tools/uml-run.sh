#!/bin/bash
# uml-run.sh - run one command as root in a user-mode Linux machine, for what this machine's kernel lacks (ipip).
#
#   tests/tools/uml-run.sh [-m MEMORY] [-t SECONDS] [-b FOLDER]... [-e NAME[=VALUE]]... [-v] -- COMMAND [ARGUMENT...]
#
#   -m  memory of the machine (512M)
#   -t  limit for the whole run in seconds (120); exit status 124 when it is reached
#   -b  a folder of this machine that the guest may write to, at the same path; may be given again
#   -e  a variable for the command; without a value, this shell's
#   -v  show the machine's console on standard error
#
# The guest sees this machine's files below an overlay in its memory: it may write anywhere, and nothing of it comes
# back except below -b folders. /tmp, /var/tmp and /run are empty there. Standard output, standard error and the exit
# status are the command's; 125: the machine did not start or died. Nothing needs root here, nothing is left behind.
#
# The kernel is Debian's user-mode-linux, from PATH or from target/peers (tests/tools/peers.sh). Modules are loaded by
# the kernel itself when asked for (`ip link add ... type ipip`); IPv6 is loaded at the start.
set -u
usage() { sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
memory=512M limit=120 verbose=0 binds=() env=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
while getopts 'm:t:b:e:v' option; do
  case $option in
    m) memory=$OPTARG ;;
    t) limit=$OPTARG ;;
    b) binds+=("$(realpath -e -- "$OPTARG")") || { echo "uml-run: -b $OPTARG: no such folder" >&2; exit 2; } ;;
    e) case $OPTARG in *=*) env+=("$OPTARG") ;; *) [ -n "${!OPTARG+set}" ] && env+=("$OPTARG=${!OPTARG}") ;; esac ;;
    v) verbose=1 ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
peers=${TORTIE_PEERS:-$here/target/peers/bin}
kernel=$(command -v linux.uml || { [ -x "$peers/linux.uml" ] && echo "$peers/linux.uml"; }) \
  || { echo "uml-run: no user-mode Linux: run make peers" >&2; exit 125; }
modules=${UML_MODULES:-/usr/lib/uml/modules}
[ -d "$modules" ] || modules=$(realpath "$peers/../root/usr/lib/uml/modules")
release=$(ls "$modules" | head -1)
[ -n "$release" ] || { echo "uml-run: no modules below $modules" >&2; exit 125; }

PATH=$PATH:/usr/sbin:/sbin
insmod=$(command -v insmod || echo "$peers/insmod") modprobe=$(command -v modprobe || echo "$peers/modprobe")
[ -x "$modprobe" ] || { echo "uml-run: no modprobe: run make peers" >&2; exit 125; }

# Everything that guest and host tell each other lies here: scripts in, output and status out.
box=$(mktemp -d "${TMPDIR:-/tmp}/uml-run.XXXXXX")
trap 'rm -rf "$box"' EXIT
mkdir "$box/uml"
: > "$box/out"; : > "$box/err"
quote() { printf '%q ' "$@"; }
{
  echo '#!/bin/bash'
  echo "cd $(quote "$PWD") 2>/dev/null || cd /"
  echo "exec env -i HOME=/root TERM=${TERM:-dumb} $(quote "${env[@]}") $(quote "$@")"
} > "$box/command"

# First program of the machine: its root is this machine's, read-only. It puts an overlay above and goes there.
cat > "$box/init" <<INIT
#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
$(quote "$insmod" "$modules/$release/kernel/fs/overlayfs/overlay.ko")
mount -t tmpfs -o mode=755 none /mnt && mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work,xino=off none /mnt/root
# Not chroot alone: who enters another mount namespace (\`ip netns exec\`, labs) would stand on the read-only root again.
cd /mnt/root && mkdir -p mnt && pivot_root . mnt
exec chroot . /bin/sh $(quote "$box/guest")
INIT
# Second one: a machine that looks like a freshly started one.
cat > "$box/guest" <<GUEST
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
end() { echo "\$1" > $(quote "$box/status.new"); mv $(quote "$box/status.new") $(quote "$box/status"); sync; echo o > /proc/sysrq-trigger; sleep 9; }
umount -l /mnt; mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm /dev/net; mount -t devpts devpts /dev/pts; mount -t tmpfs none /dev/shm
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
[ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
for dir in /tmp /var/tmp /run; do mount -t tmpfs -o mode=1777 none \$dir; done
mkdir -p /run/netns /run/lock
for dir in $(quote "$box" "${binds[@]}"); do
  mkdir -p "\$dir"; mount -t hostfs -o "\$dir" none "\$dir" || end 125
done
mkdir -p /lib/modules; [ -e /lib/modules/$release ] || ln -s $(quote "$modules/$release") /lib/modules/$release
# The kernel calls this when it misses a module.
echo $(quote "$modprobe") > /proc/sys/kernel/modprobe
$(quote "$modprobe") -q ipv6
ip link set lo up; hostname uml
setsid /bin/bash $(quote "$box/command") </dev/null >> $(quote "$box/out") 2>> $(quote "$box/err")
end \$?
GUEST
chmod +x "$box/init"

shm=/dev/shm; [ -w $shm ] || shm=$box
TMPDIR=$shm setsid "$kernel" rootfstype=hostfs rootflags=/ root=/dev/root ro "mem=$memory" quiet init="$box/init" \
  con=null con0=null,fd:1 "umid=uml$$" "uml_dir=$box/uml/" < /dev/null > "$box/console" 2>&1 &
machine=$!
tail -q -c +1 -s 0.05 -f --pid=$machine "$box/out" & tail1=$!
tail -q -c +1 -s 0.05 -f --pid=$machine "$box/err" >&2 & tail2=$!
trap 'limit=0' INT TERM
verdict=125
while kill -0 $machine 2>/dev/null; do
  if [ -e "$box/status" ]; then
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $machine 2>/dev/null || break; sleep 0.1; done
    break
  fi
  [ $SECONDS -lt "$limit" ] || { verdict=124; break; }
  sleep 0.05
done
# The machine's processes are processes of this one, all in its process group.
kill -KILL -- -$machine 2>/dev/null; { wait $machine; } 2>/dev/null
wait $tail1 $tail2 2>/dev/null
[ $verbose = 1 ] && cat "$box/console" >&2
[ -e "$box/status" ] && exit "$(cat "$box/status")"
if [ $verdict = 124 ]; then echo "uml-run: not done after $limit s" >&2; else
  echo "uml-run: the machine ended without a result:" >&2; tail -n 15 "$box/console" >&2
fi
exit $verdict

#!/bin/bash
# qemu-run.sh - run one command as root in an emulated PC with Debian's kernel, for what neither this machine's kernel nor
# user-mode Linux has: ipip together with nf_tables, and rules that log to the kernel's own log.
#
#   tests/tools/qemu-run.sh [-m MEMORY] [-c CPUS] [-t SECONDS] [-b FOLDER]... [-e NAME[=VALUE]]... [-v] -- COMMAND [ARGUMENT...]
#
#   -m  memory of the machine (512M)
#   -c  its processors (1)
#   -t  limit for the whole run in seconds (120); exit status 124 when it is reached
#   -b  a folder of this machine that the guest may write to, at the same path; may be given again
#   -e  a variable for the command; without a value, this shell's
#   -v  show the machine's console on standard error
#
# The guest sees this machine's files below an overlay in its memory: it may write anywhere, and nothing of it comes
# back except below -b folders. /tmp, /var/tmp and /run are empty there. Standard output, standard error and the exit
# status are the command's; 125: the machine did not start or died. It has no network but loopback. Needs root.
#
# Everything is emulated (no KVM: inside another machine it often hangs), about twenty times slower than here: build
# outside, run inside. QEMU, its kernel and a static busybox come from target/peers (tests/tools/peers.sh).
set -u
. "$(dirname "${BASH_SOURCE[0]}")/guest.sh"
take_options "$@"

root=$(realpath "$peers/../root")
kernel=$(ls "$root"/boot/vmlinuz-*-cloud-* 2>/dev/null | sort -V | tail -1)
[ -n "$kernel" ] && [ -x "$peers/qemu-system-x86_64" ] || { echo "qemu-run: no QEMU with a kernel: run make peers" >&2; exit 125; }
release=${kernel##*/vmlinuz-} modules=$root/lib/modules

# The first root: a shell, the few modules that it takes to reach this machine's files, and the way there.
mkdir -p "$box/first/bin" "$box/first/proc" "$box/first/mnt" "$box/first/host"
cp "$root/bin/busybox" "$box/first/bin/"
# As modprobe would load them, each once.
for module in virtio_pci virtiofs overlay; do "$modprobe" -d "$root" -S "$release" -a -D $module; done \
  | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' > "$box/modules"
while read -r file; do cp "$file" "$box/first/"; done < "$box/modules"
cat > "$box/first/init" <<INIT
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t proc proc /proc
$(sed 's,.*/,$b insmod /,' "$box/modules")
\$b mount -t virtiofs host /host
\$b mount -t tmpfs -o mode=755 tmpfs /mnt && \$b mkdir /mnt/upper /mnt/work /mnt/root
\$b mount -t overlay -o lowerdir=/host,upperdir=/mnt/upper,workdir=/mnt/work,xino=off overlay /mnt/root
\$b mkdir -p /mnt/root/.host && \$b mount --move /host /mnt/root/.host
exec \$b switch_root /mnt/root /bin/sh $(quote "/.host$box/guest")
INIT
chmod +x "$box/first/init"
(cd "$box/first" && find . | "$root/bin/busybox" cpio -o -H newc 2>/dev/null) > "$box/initrd"
write_guest "$release" "/.host$modules" 'mount --bind "/.host$dir" "$dir"'

setsid "$peers/virtiofsd" --socket-path="$box/files" -o source=/ -o cache=always -o sandbox=chroot -o log_level=err \
  < /dev/null > "$box/virtiofsd" 2>&1 &
files=$!
for _ in $(seq 100); do [ -S "$box/files" ] && break; sleep 0.02; done
setsid "$peers/qemu-system-x86_64" -accel tcg -machine q35 -cpu max -smp "$cpus" -m "$memory" -nodefaults -no-user-config \
  -display none -no-reboot -object "memory-backend-memfd,id=mem,size=$memory,share=on" -numa node,memdev=mem \
  -chardev "socket,id=files,path=$box/files" -device vhost-user-fs-pci,chardev=files,tag=host \
  -serial "file:$box/console" -kernel "$kernel" -initrd "$box/initrd" \
  -append 'console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off net.ifnames=0' < /dev/null > "$box/qemu" 2>&1 &
machine=$!
await $machine $machine $files

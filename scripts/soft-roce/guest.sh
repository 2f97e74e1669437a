#!/usr/bin/env bash
# Runs a script in a small virtual machine whose kernel has Soft-RoCE (rdma_rxe), and ends with the script's status.
#
#   guest.sh SCRIPT [FILE…]
#
# SCRIPT and the files are in /t of the guest, $SHARE (a folder of this machine) is its /host. Kernel and user land are
# Debian's packages, fetched once into $CACHE (target/soft-roce). Emulated (TCG): no time in it is a machine's own.
# Needs Debian or Ubuntu with apt, and root where packages have to be installed.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cache=${CACHE:-$here/../../target/soft-roce}
limit=${LIMIT_S:-300}
mkdir -p "$cache/debs"
cache=$(readlink -f "$cache")
script=$(readlink -f "$1")
shift
files=()
for file in "$@"; do files+=("$(readlink -f "$file")"); done

# What is in the guest beside the kernel: tools, and the libraries that they and gicbench load.
packages="ibverbs-utils ibverbs-providers libibverbs1 librdmacm1 perftest libibumad3 iproute2 libnl-3-200
    libnl-route-3-200 libpci3 libelf1 libbpf1 libbsd0 libmd0 libmnl0 libcap2 libtirpc3 libxtables12 libdb5.3
    libgssapi-krb5-2 libkrb5-3 libk5crypto3 libcom-err2 libkrb5support0 libkeyutils1 libssl3 libselinux1
    libpcre2-8-0 zlib1g libzstd1 liblzma5 libudev1 libc6 libgcc-s1 libstdc++6 dash coreutils libacl1 libattr1
    libgmp10 procps libproc2-0 libsystemd0 liblz4-1 libgcrypt20 libgpg-error0 util-linux libsmartcols1 libmount1
    libblkid1 libuuid1 libtinfo6 libncursesw6 libreadline8"
modules="virtio_pci virtio_net 9pnet_virtio 9p dummy veth sch_netem crc32_generic ib_uverbs rdma_cm rdma_ucm
    ib_umad rdma_rxe"

prepare() {
    local tool image=$cache/image kernel=$cache/kernel
    for tool in qemu-system-x86_64 depmod cpio xz busybox; do
        command -v $tool >/dev/null && continue
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            qemu-system-x86 busybox-static kmod cpio xz-utils >/dev/null || {
            echo "guest.sh: $tool isn't installed, and can't be" >&2
            exit 77
        }
        break
    done
    # The cloud flavour of the kernel has no Soft-RoCE.
    local package
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
    # shellcheck disable=SC2086
    [ -n "$package" ] && (cd "$cache/debs" && apt-get -qq -o APT::Sandbox::User=root download "$package" $packages) || {
        echo "guest.sh: Debian's kernel and the packages for the guest can't be had here" >&2
        exit 77
    }
    rm -rf "$image" "$kernel"
    mkdir -p "$kernel" "$image"/{proc,sys,dev,tmp,run,mods,t,host,root,etc}
    local deb
    for deb in "$cache"/debs/*.deb; do
        case $deb in
            */linux-image*) dpkg-deb -x "$deb" "$kernel" ;;
            *) dpkg-deb -x "$deb" "$image" ;;
        esac
    done
    rm -rf "$image"/usr/share "$image"/usr/lib/x86_64-linux-gnu/{gconv,audit}
    cp "$(command -v busybox)" "$image/bin/busybox"
    echo root:x:0:0:root:/root:/bin/dash >"$image/etc/passwd"
    echo root:x:0: >"$image/etc/group"
    echo 127.0.0.1 localhost >"$image/etc/hosts"
    local version=${package#linux-image-} module path
    depmod -b "$kernel" "$version"
    for module in $modules; do
        modprobe -d "$kernel" -S "$version" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
    done | awk '!seen[$0]++' | while read -r path; do
        case $path in
            *.xz) xz -dc "$path" >"$image/mods/$(basename "$path" .xz)" ;;
            *) cp "$path" "$image/mods/" ;;
        esac
        basename "$path" .xz >>"$image/mods/order"
    done
    cp "$here/init.sh" "$image/init"
    chmod +x "$image/init"
    cp "$kernel/boot/vmlinuz-$version" "$cache/vmlinuz"
    (cd "$image" && find . | cpio -o -H newc --quiet) >"$cache/base.cpio.new"
    mv "$cache/base.cpio.new" "$cache/base.cpio"
}

# The image is made again when what is in it changes.
signature=$(cat "$here/guest.sh" "$here/init.sh" | sha256sum | cut -c1-16)
if [ "$(cat "$cache/signature" 2>/dev/null)" != "$signature" ]; then
    prepare
    echo "$signature" >"$cache/signature"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/extra/t"
cp "$script" "$work/extra/t/run.sh"
for file in ${files[@]+"${files[@]}"}; do cp -L "$file" "$work/extra/t/"; done
# Archives one after the other are one to the kernel.
{ cat "$cache/base.cpio"; (cd "$work/extra" && find . | cpio -o -H newc --quiet); } >"$work/initrd"
rm -rf "$work/extra"

share=()
[ -n "${SHARE:-}" ] && share=(-virtfs "local,path=$SHARE,mount_tag=host,security_model=none")
timeout -k 5 "$limit" qemu-system-x86_64 -name guest,debug-threads=on -M pc,graphics=off \
    -accel tcg,thread=multi,tb-size=512 -cpu max -smp 2 -m "${MEMORY_MIB:-2048}" -nodefaults -no-user-config \
    -display none -serial stdio -monitor none -no-reboot -device isa-debug-exit,iobase=0xf4,iosize=1 \
    ${share[@]+"${share[@]}"} -kernel "$cache/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on" \
    </dev/null &
watchdog=$!
# Two pollers in the guest need two processors: schedulers of some machines pack both on one, which stalls the guest.
for _ in $(seq 50); do
    sleep 0.1
    qemu=$(cat "/proc/$watchdog/task/$watchdog/children" 2>/dev/null | awk '{print $1}')
    [ -n "$qemu" ] && grep -qs "CPU 1" /proc/"$qemu"/task/*/comm && break
done
for task in /proc/"${qemu:-0}"/task/*; do
    name=$(cat "$task/comm" 2>/dev/null) || continue
    case $name in
        "CPU "*)
            number=${name#CPU }
            taskset -pc $((${number%%/*} % $(nproc))) "${task##*/}" >/dev/null || true
            ;;
    esac
done
status=0
wait $watchdog || status=$?
# The guest ends with an odd status: twice the script's, and one.
if [ $status = 124 ] || [ $status = 137 ]; then
    echo "guest.sh: the guest took longer than $limit s" >&2
    exit 124
elif [ $((status % 2)) = 1 ]; then
    exit $(((status - 1) / 2))
fi
echo "guest.sh: the virtual machine ended without the script's status ($status)" >&2
exit 125

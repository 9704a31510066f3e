#!/bin/bash
# archive.sh - the container image of Tortie as a file, from a program that is built already; it needs no docker.
#
#   packaging/docker/archive.sh PROGRAM FILE [TAG]     writes FILE, an OCI image layout as a tar archive, and prints FILE
#
# `docker load -i FILE`, `podman load -i FILE` and `skopeo copy oci-archive:FILE ...` read it; TAG defaults to tortie:VERSION.
# Content as of image.sh, settings as of the Dockerfile. SOURCE_DATE_EPOCH (default 0) is the only time in it: the same program
# gives the same octets for any user, folder and time.
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
program=$(realpath "${1:?packaging/docker/archive.sh PROGRAM FILE [TAG]}")
file=$(realpath -m "${2:?packaging/docker/archive.sh PROGRAM FILE [TAG]}")
version=$("$program" version | cut -d' ' -f2)
tag=${3:-tortie:$version}
epoch=${SOURCE_DATE_EPOCH:-0}
case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# The files below $1 in the order of their names, owned by root, as old as the commit.
pack() {
  (cd "$1" && find . -mindepth 1 -printf '%P\0' | sort -z \
    | tar --create --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@$epoch" --no-recursion --null --files-from=-)
}
# Puts standard input among the blobs and prints its digest.
blob() {
  local digest
  cat > "$work/blob"
  digest=$(sha256sum < "$work/blob" | cut -d' ' -f1)
  mv "$work/blob" "$work/layout/blobs/sha256/$digest"
  echo "$digest"
}
size() { stat -c %s "$work/layout/blobs/sha256/$1"; }
# The value of an instruction of the Dockerfile; those of ENTRYPOINT, CMD and VOLUME are JSON already.
instruction() { sed -n "s/^$1 //p" "$here/Dockerfile"; }

"$here/image.sh" "$program" --context "$work/context"
mkdir -p "$work/layout/blobs/sha256"
pack "$work/context/root" > "$work/layer.tar"
diff_id=$(sha256sum < "$work/layer.tar" | cut -d' ' -f1)
layer=$(gzip -9n < "$work/layer.tar" | blob)
created=$(date -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
volumes=$(instruction VOLUME | sed 's/^\[/{/; s/\]$/}/; s/",/": {},/g; s/"}$/": {}}/')
config=$(blob <<JSON
{"created":"$created","architecture":"$arch","os":"linux","config":{"Env":["$(instruction ENV)"],"Entrypoint":$(instruction ENTRYPOINT),"Cmd":$(instruction CMD),"Volumes":$volumes,"StopSignal":"$(instruction STOPSIGNAL)","Labels":{"org.opencontainers.image.version":"$version","org.opencontainers.image.licenses":"Apache-2.0"}},"rootfs":{"type":"layers","diff_ids":["sha256:$diff_id"]},"history":[{"created":"$created","created_by":"packaging/docker/archive.sh"}]}
JSON
)
manifest=$(blob <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:$config","size":$(size "$config")},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:$layer","size":$(size "$layer")}]}
JSON
)
echo '{"imageLayoutVersion":"1.0.0"}' > "$work/layout/oci-layout"
cat > "$work/layout/index.json" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:$manifest","size":$(size "$manifest"),"annotations":{"io.containerd.image.name":"docker.io/library/$tag","org.opencontainers.image.ref.name":"${tag##*:}"}}]}
JSON
# What `docker load` reads; an OCI layout alone it takes only with containerd's image store.
cat > "$work/layout/manifest.json" <<JSON
[{"Config":"blobs/sha256/$config","RepoTags":["$tag"],"Layers":["blobs/sha256/$layer"]}]
JSON
mkdir -p "$(dirname "$file")"
pack "$work/layout" > "$file"
echo "$file"

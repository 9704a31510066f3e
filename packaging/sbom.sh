#!/bin/bash
# sbom.sh - the bill of materials of the program, as CycloneDX 1.5 in JSON.
#
#   packaging/sbom.sh FILE [TARGET]      writes FILE and prints how many components it has; TARGET defaults to this machine's
#
# Components are what `cargo tree -e normal` lists for the package tortie: crates of the program itself and those whose macros it uses,
# without those of build scripts and tests. The checksums are those of Cargo.lock. SOURCE_DATE_EPOCH (default 0) is the only time in it.
# Not with cargo-cyclonedx: it reads `cargo metadata`, which also turns on the features that tests and build scripts ask of a crate, and
# so lists crates that are not in the program (22 of 202 in version 0.2.0); and it writes the paths of this machine.
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022
file=$(realpath -m "${1:?packaging/sbom.sh FILE [TARGET]}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}
host=$(rustc -vV | sed -n 's/^host: //p')
target=${2:-$host}
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
commit=$(git rev-parse HEAD 2>/dev/null || true)
created=$(date -d "@${SOURCE_DATE_EPOCH:-0}" +%Y-%m-%dT%H:%M:%SZ)
tree() { "$cargo" tree --quiet --locked --package tortie --edges normal --target "$target" "$@"; }

mkdir -p "$(dirname "$file")"
tree --prefix depth --format '|{p}|{l}' | awk -v repository="$repository" -v commit="$commit" -v created="$created" -v target="$target" '
  function quoted(text) { gsub(/["\\]/, "\\\\&", text); return "\"" text "\"" }
  # SPDX has no "/" between licences.
  function licence(text) { gsub(/ *\/ */, " OR ", text); return text }
  NR == FNR {
    if ($0 == "[[package]]") { name = ""; version = "" }
    else if (sub(/^name = /, "")) { gsub(/"/, ""); name = $0 }
    else if (sub(/^version = /, "")) { gsub(/"/, ""); version = $0 }
    else if (sub(/^checksum = /, "")) { gsub(/"/, ""); checksum[name "@" version] = $0 }
    next
  }
  {
    split($0, column, "|"); split(column[2], word, " ")
    depth = column[1] + 0; name = word[1]; version = substr(word[2], 2); key = name "@" version
    sub(/ \(\*\)$/, "", column[3])
    if (!(key in known)) {
      known[key] = 1; order[++count] = key; names[key] = name; versions[key] = version; licences[key] = licence(column[3])
      own[key] = !(key in checksum)
    }
    at[depth] = key
    if (depth > 0 && !((at[depth - 1], key) in edge)) { edge[at[depth - 1], key] = 1; uses[at[depth - 1]] = uses[at[depth - 1]] " " key }
  }
  function purl(key,   path) {
    path = "pkg:cargo/" key
    gsub(/\+/, "%2B", path)
    if (!own[key]) return path
    return path "?vcs_url=git%2B" repository (commit == "" ? "" : "%40" commit)
  }
  function component(key, type,   text) {
    text = "{\"type\":\"" type "\",\"bom-ref\":" quoted(key) ",\"name\":" quoted(names[key]) ",\"version\":" quoted(versions[key])
    if (key in checksum) text = text ",\"hashes\":[{\"alg\":\"SHA-256\",\"content\":\"" checksum[key] "\"}]"
    if (licences[key] != "") text = text ",\"licenses\":[{\"expression\":" quoted(licences[key]) "}]"
    return text ",\"purl\":" quoted(purl(key)) "}"
  }
  function sort(list, n,   i, j, held) {
    for (i = 2; i <= n; i++) { held = list[i]; for (j = i - 1; j > 0 && list[j] > held; j--) list[j + 1] = list[j]; list[j + 1] = held }
  }
  END {
    root = order[1]
    print "{\"bomFormat\":\"CycloneDX\",\"specVersion\":\"1.5\",\"version\":1,"
    print "\"metadata\":{\"timestamp\":\"" created "\",\"component\":" component(root, "application") ","
    print "\"properties\":[{\"name\":\"cargo:target\",\"value\":" quoted(target) "}]},"
    print "\"components\":["
    sort(order, count)
    for (i = 1; i <= count; i++) if (order[i] != root) print component(order[i], "library") (++printed < count - 1 ? "," : "")
    print "],\n\"dependencies\":["
    for (i = 1; i <= count; i++) {
      n = split(uses[order[i]], list, " "); sort(list, n); text = ""
      for (j = 1; j <= n; j++) text = text (j > 1 ? "," : "") quoted(list[j])
      print "{\"ref\":" quoted(order[i]) ",\"dependsOn\":[" text "]}" (i < count ? "," : "")
    }
    print "]}"
  }' Cargo.lock - > "$file"

# Each crate that cargo lists is a component, and no other.
listed=$(tree --prefix none --format '{p}' | sed 's/^\([^ ]*\) v\([^ ]*\).*/\1@\2/' | sort -u)
here=$(grep -o '"bom-ref":"[^"]*"' "$file" | cut -d'"' -f4 | sort -u)
if [ "$listed" != "$here" ]; then
  echo "sbom.sh: $file differs from cargo tree:" >&2
  diff <(echo "$listed") <(echo "$here") >&2 || true
  exit 1
fi
echo "$(echo "$here" | wc -l) components, as cargo tree lists them: $file"

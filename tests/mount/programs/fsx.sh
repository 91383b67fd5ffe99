# Random reads, writes, truncations and mappings of one file against a model, for long with --seconds.
# needs: mount_fsx
# One file is an object of one request, the other one of many parts.
work() {
  for size in 2000000 30000000; do
    mount_fsx "file$size" --seed "${FSX_SEED:-$RANDOM}" --size $size --seconds $((4 + SECONDS_MORE / 2)) --copy "$SCRATCH/file$size"
  done
}
see() { for file in file*; do cmp "$file" "$SCRATCH/$file"; done; }
"$1"

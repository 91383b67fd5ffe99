# Random reads, writes, truncations and mappings of one file against a model, for long with --seconds.
# needs: mount_fsx
work() {
  for seed in ${FSX_SEEDS:-$RANDOM 1}; do
    mount_fsx "file$seed" --seed "$seed" --seconds $((4 + SECONDS_MORE / 2)) --copy "$SCRATCH/file$seed"
  done
}
see() { for file in file*; do cmp "$file" "$SCRATCH/$file"; done; }
"$1"

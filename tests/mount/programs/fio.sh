# fio writes at random and reads back what it should have written: several sizes, engines, and files.
# needs: fio
jobs() {
  local common=(--size=12m --verify=crc32c --verify_fatal=1 --group_reporting --minimal --output="$SCRATCH/fio.out" --randseed=7)
  fio "${common[@]}" "$@" --name=small --filename=small --rw=randwrite --bs=4k --size=3m
  fio "${common[@]}" "$@" --name=mixed --filename=mixed --rw=randrw --bsrange=1k-256k --bs_unaligned=1 --norandommap=0
  fio "${common[@]}" "$@" --name=large --filename=large --rw=write --bs=1m --size=40m
  fio "${common[@]}" "$@" --name=mapped --filename=mapped --rw=randwrite --bs=16k --ioengine=mmap
  fio "${common[@]}" "$@" --name=many --rw=randwrite --bs=64k --numjobs=3 --size=4m
}
work() {
  jobs --do_verify=1
  fio --name=synced --filename=synced --rw=randwrite --bs=32k --size=4m --fsync=16 --verify=sha256 --verify_fatal=1 --minimal --output="$SCRATCH/fio.out"
}
see() { jobs --verify_only; }
"$1"

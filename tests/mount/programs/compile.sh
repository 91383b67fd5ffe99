# A small C project: dependencies are told by times, programs run from the mount, a second build finds nothing to do.
# needs: make, ninja, gcc, ar
work() {
  mkdir src; for i in $(seq 8); do echo "int f$i(void) { return $i; }" >src/f$i.c; done
  { for i in $(seq 8); do echo "int f$i(void);"; done; echo 'int main(void) { return f1() + f8() == 9 ? 0 : 1; }'; } >src/main.c
  printf 'OBJECTS := $(patsubst %%.c,%%.o,$(wildcard src/*.c))\nprogram: libf.a src/main.o\n\tgcc -o $@ src/main.o -L. -lf\n' >Makefile
  printf 'libf.a: $(filter-out src/main.o,$(OBJECTS))\n\trm -f $@; ar rcs $@ $^\n%%.o: %%.c\n\tgcc -g -c -o $@ $<\n' >>Makefile
  make -j2; ./program; make -q
  sleep 1; touch src/f1.c; sleep 1; ! make -q; make; make -q; ./program
  { echo 'rule cc'; echo '  command = gcc -MD -MF $out.d -c $in -o $out'; echo '  depfile = $out.d'; echo '  deps = gcc'
    echo 'rule ld'; echo '  command = gcc $in -o $out'
    for i in $(seq 8); do echo "build n/f$i.o: cc src/f$i.c"; done
    echo 'build n/main.o: cc src/main.c'; echo "build n/program: ld n/main.o $(for i in $(seq 8); do printf 'n/f%s.o ' "$i"; done)"; } >build.ninja
  ninja -j2; ./n/program; ninja | grep -q 'no work'
  sleep 1.1; echo 'int g(void) { return 0; }' >>src/f2.c; ninja | tail -1 | grep -q '\[2/2\]'; ninja -t clean; ninja; ./n/program; make
}
# ninja compares the times that it recorded on the first mount with those of this one. If it would build, it says why.
see() { ./program; ./n/program; make -q; said=$(ninja -n -d explain 2>&1) && [[ $said == *'no work'* ]] || { echo "$said"; false; }; }
"$1"

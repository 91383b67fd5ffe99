// The one program of `make release`: `millrace`, and `millrace-csi` where its name is that. tools/release/link links it
// without shared libraries, so it runs on every Linux, whatever C library that has or lacks.
#include <dlfcn.h>
#include <nss.h>
#include <openssl/crypto.h>

#include <string_view>

// The two programs' own main(), renamed by tools/release/link.
extern "C" int MillraceMain(int argc, char** argv);
extern "C" int MillraceCsiMain(int argc, char** argv);

// The system's libraries need the C library that they were built for, which is not this program's. The standard library
// would load that one as well and then call one of the two with data of the other. These replace its functions.
extern "C" {
void* dlopen(const char*, int) noexcept { return nullptr; }
void* dlsym(void*, const char*) noexcept { return nullptr; }
int dlclose(void*) noexcept { return 0; }
char* dlerror() noexcept {
  static char text[] = "the program in one file loads no libraries; that of the Debian packages does";
  return text;
}
}

int main(int argc, char** argv) {
  // /etc/nsswitch.conf may name services that the C library would load. These two are inside it. A host that systemd
  // resolves is also found by `dns`, through the server in /etc/resolv.conf.
  for (const char* database : {"passwd", "group", "services", "protocols"}) __nss_configure_lookup(database, "files");
  __nss_configure_lookup("hosts", "files dns");
  // The system's openssl.cnf may name providers, which are libraries as well.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  const std::string_view name(argc > 0 ? argv[0] : "");
  return name.substr(name.rfind('/') + 1) == "millrace-csi" ? MillraceCsiMain(argc, argv) : MillraceMain(argc, argv);
}

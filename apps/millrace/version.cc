#include "apps/millrace/version.h"

#define FUSE_USE_VERSION 312
#include <curl/curl.h>
#include <fmt/format.h>
#include <fuse3/fuse_lowlevel.h>
#include <sys/utsname.h>
#include <zstd.h>

#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include "apps/millrace/doctor/doctor.h"

namespace millrace::cli {
namespace {

std::string Libraries() {
  const curl_version_info_data* curl = curl_version_info(CURLVERSION_NOW);
  return fmt::format("libcurl {} with {}, zstd {}, libfuse {}", curl->version, curl->ssl_version, ZSTD_versionString(),
                     fuse_pkgversion());
}

std::string System() {
  utsname system{};
  uname(&system);
  std::string text = fmt::format("{} {}, {}", system.sysname, system.release, system.machine);
#if defined(__GLIBC__)
  text += fmt::format(", glibc {}", gnu_get_libc_version());
#endif
  return text;
}

}  // namespace

std::string VersionText() {
  std::string text = fmt::format("millrace {}\n", MILLRACE_VERSION);
  const auto line = [&](const std::string& name, const std::string& what) {
    text += fmt::format("{:<10} {}\n", name, what);
  };
  line("compiler", "g++ " __VERSION__);
  line("libraries", Libraries());
  for (const Finding& finding : {CheckPrograms({}), CheckCpu(), CheckFuse({})}) line(finding.check, finding.what);
  line("system", System());
  text.pop_back();
  return text;
}

}  // namespace millrace::cli

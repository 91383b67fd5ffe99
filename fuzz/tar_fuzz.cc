// Any archive is refused or read within its bounds, also when the checksums of its headers hold.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "millrace/data/formats/tar.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::data;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (std::size_t block = 0; block + 512 <= bytes.size(); block += 512) {
    bytes.replace(block + 148, 8, "        ");
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[block + i]);
    if (sum == 8 * ' ') continue;  // keeps the block of zeros that ends an archive
    std::snprintf(bytes.data() + block + 148, 8, "%06o", sum);
  }
  static const std::unique_ptr<const Syntax> tar = MakeTarSyntax();
  auto splitter = tar->NewSplitter();
  std::string_view rest = bytes;
  while (!rest.empty()) {
    auto end = splitter->Find(rest, 1, true);
    if (!end) return 0;
    if (!*end || **end == 0 || **end > rest.size()) std::abort();
    auto lines = tar->ToLines(ToBuffer(rest.substr(0, **end)), 0);
    if (lines && !lines->empty() && !AsText(*lines).ends_with('\n')) std::abort();
    rest.remove_prefix(**end);
    splitter->Restart(0);
  }
  return 0;
}

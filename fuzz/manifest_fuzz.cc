// Any text under a right checksum is either an error or a manifest that serializes and parses back to itself.
#include <cstdlib>

#include "millrace/base/hash/crc.h"
#include "millrace/checkpoint/format/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using millrace::checkpoint::Manifest;
  std::string body(reinterpret_cast<const char*>(data), size);
  std::string sealed = fmt::format("{},\"crc32c\":\"{:08x}\"}}\n", body, millrace::Crc32c(millrace::AsBytes(body)));
  auto manifest = Manifest::Parse(sealed, "fuzz");
  if (!manifest) return 0;
  std::string text = manifest->Serialize();
  auto again = Manifest::Parse(text, "serialized");
  if (!again || again->Serialize() != text) std::abort();
  return 0;
}

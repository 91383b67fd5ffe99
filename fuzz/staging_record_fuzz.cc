// A record of a staged file is either refused or says the same when it is written again; one whose keys are accepted
// names nothing outside its mount. The checksum is made valid: an attacker can compute it too.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "millrace/base/hash/crc.h"
#include "millrace/vfs/staging/staged_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::vfs;
  std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto line = body.find('\n'); line != body.npos) body = body.substr(line + 1);
  while (body.ends_with('\n')) body.remove_suffix(1);
  const std::string text = fmt::format("{{\"format\":1,\"crc32c\":{}}}\n{}\n", Crc32c(AsBytes(body)), body);
  (void)DecodeRecord({reinterpret_cast<const char*>(data), size}, "as it is");
  auto decoded = DecodeRecord(text, "fuzz");
  if (!decoded) return 0;
  const std::string written = EncodeRecord(decoded->record, decoded->target);
  auto again = DecodeRecord(written, "again");
  if (!again || EncodeRecord(again->record, again->target) != written) std::abort();
  const std::string prefix = "p/";
  if (!CheckKeys(decoded->record, prefix, "fuzz")) return 0;
  const auto is_inside = [&](std::string_view key) { return key.starts_with(prefix) && key.size() > prefix.size(); };
  if (!is_inside(decoded->record.key)) std::abort();
  if (decoded->record.complete && decoded->record.key.find("/../") != std::string::npos) std::abort();
  if (decoded->record.base && !is_inside(decoded->record.base->key)) std::abort();
  if (!decoded->record.upload_key.empty() && !is_inside(decoded->record.upload_key)) std::abort();
  return 0;
}

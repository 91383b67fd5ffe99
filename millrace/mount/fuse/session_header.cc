#include "millrace/mount/fuse/session_header.h"

#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"

namespace millrace::mount {
namespace {

constexpr std::uint64_t kHeaderFormat = 1;

Result<SessionHeader> DecodeHeader(const std::string& text) {
  const Json json = MR_TRY(ParseJson(text, "the log of a mount"));
  if (MR_TRY(JsonUint(json, "format")) != kHeaderFormat) return Fail(Code::kCorrupt, "another version wrote it");
  SessionHeader header;
  header.source = MR_TRY(JsonString(json, "source"));
  header.began = WallTime(std::chrono::nanoseconds(MR_TRY(JsonInt(json, "began"))));
  const std::string hex = MR_TRY(JsonString(json, "init"));
  const std::vector<std::byte> request = MR_TRY(HexDecode(hex));
  header.start.request = std::string(AsText(request));
  header.start.want = static_cast<unsigned>(MR_TRY(JsonUint(json, "want")));
  return header;
}

}  // namespace

std::string FormatHeader(const SessionHeader& header) {
  return DumpJson({{"format", kHeaderFormat},
                   {"source", header.source},
                   {"began", std::chrono::nanoseconds(header.began.time_since_epoch()).count()},
                   {"init", HexEncode(AsBytes(header.start.request))},
                   {"want", header.start.want}});
}

Result<SessionHeader> ParseHeader(const std::string& text) {
  auto header = DecodeHeader(text);
  if (!header) return Fail(header.error().Context("the log of a mount").WithCode(Code::kCorrupt));
  return header;
}

}  // namespace millrace::mount

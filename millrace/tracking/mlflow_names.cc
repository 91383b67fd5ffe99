#include "millrace/tracking/mlflow_names.h"

#include <fmt/format.h>

#include <vector>

#include "millrace/base/hash/crc.h"
#include "millrace/base/text.h"

namespace millrace::tracking {
namespace {

bool IsKept(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ' ' || c == '/';
}

}  // namespace

std::string MlflowKey(std::string_view name) {
  std::string kept;
  for (const char c : name) {
    if (c == ']') continue;
    kept += c == '[' ? '.' : IsKept(c) ? c : '_';
  }
  // MLflow refuses keys that are no normal paths.
  std::string key;
  for (const std::string_view part : Split(kept, '/')) {
    if (part.empty() || part == "." || part == "..") continue;
    if (!key.empty()) key += '/';
    key += part;
  }
  if (key.empty()) key = "_";
  if (key.size() <= kMaxMlflowKey) return key;
  const std::string checksum = fmt::format("-{:08x}", Crc32c(AsBytes(name)));
  return key.substr(0, kMaxMlflowKey - checksum.size()) + checksum;
}

std::string CutText(std::string_view value, std::size_t most) {
  if (value.size() <= most) return std::string(value);
  // Bytes of the form 10xxxxxx continue a character.
  while (most > 0 && (static_cast<unsigned char>(value[most]) & 0xC0) == 0x80) --most;
  return std::string(value.substr(0, most));
}

}  // namespace millrace::tracking

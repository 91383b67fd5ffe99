#include "millrace/base/files/content_types.h"

#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

constexpr std::size_t kMaxTableBytes = 4 * kMiB;  // those of Debian have 60 KiB

constexpr std::pair<std::string_view, std::string_view> kCommon[] = {{"avif", "image/avif"},
                                                                     {"bin", "application/octet-stream"},
                                                                     {"css", "text/css"},
                                                                     {"csv", "text/csv"},
                                                                     {"gif", "image/gif"},
                                                                     {"gz", "application/gzip"},
                                                                     {"htm", "text/html"},
                                                                     {"html", "text/html"},
                                                                     {"ico", "image/vnd.microsoft.icon"},
                                                                     {"jpeg", "image/jpeg"},
                                                                     {"jpg", "image/jpeg"},
                                                                     {"js", "text/javascript"},
                                                                     {"json", "application/json"},
                                                                     {"md", "text/markdown"},
                                                                     {"mjs", "text/javascript"},
                                                                     {"mp3", "audio/mpeg"},
                                                                     {"mp4", "video/mp4"},
                                                                     {"ogg", "audio/ogg"},
                                                                     {"pdf", "application/pdf"},
                                                                     {"png", "image/png"},
                                                                     {"svg", "image/svg+xml"},
                                                                     {"tar", "application/x-tar"},
                                                                     {"toml", "application/toml"},
                                                                     {"tsv", "text/tab-separated-values"},
                                                                     {"txt", "text/plain"},
                                                                     {"wasm", "application/wasm"},
                                                                     {"wav", "audio/wav"},
                                                                     {"webm", "video/webm"},
                                                                     {"webp", "image/webp"},
                                                                     {"woff", "font/woff"},
                                                                     {"woff2", "font/woff2"},
                                                                     {"xml", "application/xml"},
                                                                     {"yaml", "application/yaml"},
                                                                     {"yml", "application/yaml"},
                                                                     {"zip", "application/zip"},
                                                                     {"zst", "application/zstd"}};

/// Returns whether the text may be the value of a header.
bool IsMediaType(std::string_view text) {
  const std::size_t slash = text.find('/');
  return slash != 0 && slash != text.npos && slash + 1 < text.size() &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$&^_.+-/") ==
             text.npos;
}

/// Calls `visit` with each word of the line.
template <class Visit>
void ForEachWord(std::string_view line, Visit visit) {
  constexpr std::string_view kBlanks = " \t\r";
  for (std::size_t at = line.find_first_not_of(kBlanks); at != line.npos; at = line.find_first_not_of(kBlanks, at)) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    visit(line.substr(at, end - at));
    at = end;
  }
}

}  // namespace

ContentTypes::ContentTypes(const std::vector<std::filesystem::path>& tables) {
  for (const auto& [extension, type] : kCommon) types_.emplace(extension, type);
  for (const std::filesystem::path& path : tables) {
    if (const auto table = ReadFile(path, kMaxTableBytes)) Read(*table);
  }
}

const ContentTypes& ContentTypes::OfSystem() {
  static const ContentTypes types({"/usr/share/mime/globs2", "/etc/mime.types"});
  return types;
}

std::string_view ContentTypes::Of(std::string_view name) const {
  const std::size_t dot = name.find_last_of("./");
  if (dot == name.npos || name[dot] == '/') return "";
  const auto found = types_.find(ToLower(name.substr(dot + 1)));
  return found == types_.end() ? "" : std::string_view(found->second);
}

void ContentTypes::Read(std::string_view table) {
  constexpr std::string_view kAnyName = "*.";
  for (std::string_view line : Split(table, '\n')) {
    if (line.starts_with('#')) continue;
    const std::vector<std::string_view> fields = Split(line, ':');
    if (fields.size() >= 3) {  // globs2: weight, type, glob; the greatest weight is first
      std::string_view glob = fields[2];
      if (!glob.starts_with(kAnyName) || !IsMediaType(fields[1])) continue;
      glob.remove_prefix(kAnyName.size());
      if (glob.find_first_of("*?[.") == glob.npos) types_.emplace(ToLower(glob), fields[1]);
      continue;
    }
    std::string_view type;  // mime.types: a type and its extensions
    ForEachWord(line, [&](std::string_view word) {
      if (type.empty()) {
        type = word;
      } else if (IsMediaType(type)) {
        types_.emplace(ToLower(word), type);
      }
    });
  }
}

}  // namespace millrace

#include "millrace/vfs/metadata/attributes.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <charconv>
#include <ctime>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"

namespace millrace::vfs {
namespace {

constexpr const char *kMode = "mode", *kUid = "uid", *kGid = "gid", *kModified = "mtime", *kAccessed = "atime",
                     *kChanged = "ctime", *kXattr = "xattr", *kDevice = "rdev";
constexpr std::uint32_t kMaxMode = S_IFMT | 07777;
constexpr int kNanoDigits = 9;                   ///< decimals of a second that a nanosecond needs
constexpr std::int64_t kSecond = 1'000'000'000;  ///< in nanoseconds

template <class T>
std::optional<T> ParseNumber(std::string_view text, int base = 10) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool HasType(std::uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFIFO:
    case S_IFCHR:
    case S_IFBLK:
    case S_IFSOCK:
      return mode <= kMaxMode;
    default:
      return false;
  }
}

/// Parses s3fs's decimal numbers with type bits, rclone's octal ones, and bare octal permissions of other programs. A
/// number with a type is valid in one notation only.
std::optional<std::uint32_t> ParseMode(std::string_view text) {
  const auto octal = ParseNumber<std::uint32_t>(text, 8);
  if (!text.starts_with('0')) {
    if (auto decimal = ParseNumber<std::uint32_t>(text); decimal && HasType(*decimal)) return decimal;
  }
  if (octal && (HasType(*octal) || *octal <= 07777)) return octal;
  return std::nullopt;
}

/// Parses the decimals of a second, such as "5" or "1234567890123", to whole nanoseconds.
std::optional<std::int64_t> ParseFraction(std::string_view digits) {
  std::string nine(digits.substr(0, kNanoDigits));
  nine.resize(kNanoDigits, '0');
  for (char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
  }
  return ParseNumber<std::int64_t>(nine);
}

std::optional<WallTime> FromSeconds(std::int64_t seconds, std::int64_t nanos) {
  // Seconds whose nanoseconds fit into 64 bits.
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max() / kSecond - 1;
  if (seconds > kMax || seconds < -kMax) return std::nullopt;
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::nanoseconds(seconds * kSecond + nanos)));
}

std::optional<WallTime> ParseRfc3339(const std::string& text) {
  std::tm fields{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &fields);
  if (rest == nullptr) return std::nullopt;
  std::string_view tail(rest);
  std::int64_t nanos = 0;
  if (tail.starts_with('.')) {
    const std::size_t end = std::min(tail.find_first_not_of("0123456789", 1), tail.size());
    auto fraction = ParseFraction(tail.substr(1, end - 1));
    if (!fraction) return std::nullopt;
    nanos = *fraction;
    tail.remove_prefix(end);
  }
  std::int64_t offset = 0;
  if (tail != "Z") {  // "+02:00"
    if (tail.size() != 6 || (tail[0] != '+' && tail[0] != '-') || tail[3] != ':') return std::nullopt;
    auto hours = ParseNumber<int>(tail.substr(1, 2)), minutes = ParseNumber<int>(tail.substr(4, 2));
    if (!hours || !minutes) return std::nullopt;
    offset = (*hours * 60 + *minutes) * 60 * (tail[0] == '-' ? -1 : 1);
  }
  return FromSeconds(::timegm(&fields) - offset, nanos);
}

/// Seconds since 1970, with or without a fraction; or RFC 3339.
std::optional<WallTime> ParseTime(const std::string& text) {
  if (text.find('T') != std::string::npos) return ParseRfc3339(text);
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string_view whole = std::string_view(text).substr(0, point);
  auto seconds = ParseNumber<std::int64_t>(whole);
  auto nanos = point == text.size() ? 0 : ParseFraction(std::string_view(text).substr(point + 1));
  if (!seconds || !nanos) return std::nullopt;
  return FromSeconds(*seconds, whole.starts_with('-') ? -*nanos : *nanos);
}

std::string FormatTime(WallTime time) {
  const std::int64_t nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  return fmt::format("{}{}.{:09}", nanos < 0 ? "-" : "", std::abs(nanos / kSecond), std::abs(nanos % kSecond));
}

std::map<std::string, std::string> ParseXattrs(const std::string& text) {
  std::map<std::string, std::string> xattrs;
  auto decoded = PercentDecode(text);
  auto json = decoded ? ParseJson(*decoded, "xattr", {.depth = 2}) : Result<Json>(Fail(decoded.error()));
  if (!json || !json->is_object()) return xattrs;
  for (const auto& [name, value] : json->items()) {
    if (!value.is_string()) continue;
    auto bytes = Base64Decode(value.get_ref<const std::string&>());
    if (bytes && !name.empty()) xattrs[name] = std::string(AsText(ByteSpan(*bytes)));
  }
  return xattrs;
}

std::string FormatXattrs(const std::map<std::string, std::string>& xattrs) {
  Json json = Json::object();
  for (const auto& [name, value] : xattrs) json[name] = Base64Encode(AsBytes(value));
  return PercentEncode(DumpJson(json), false);
}

}  // namespace

bool StoredAttributes::is_symlink() const { return mode && S_ISLNK(*mode); }

bool StoredAttributes::is_special() const {
  return mode && (S_ISFIFO(*mode) || S_ISSOCK(*mode) || S_ISBLK(*mode) || S_ISCHR(*mode));
}

StoredAttributes FromMetadata(const UserMetadata& metadata) {
  StoredAttributes attributes;
  auto read = [&]<class T>(const char* name, T parse) -> decltype(parse(std::string())) {
    auto found = metadata.find(name);
    if (found == metadata.end() || found->second.size() > kMaxMetadataBytes) return {};
    return parse(found->second);
  };
  attributes.mode = read(kMode, [](const std::string& text) { return ParseMode(text); });
  attributes.uid = read(kUid, [](const std::string& text) { return ParseNumber<std::uint32_t>(text); });
  attributes.gid = read(kGid, [](const std::string& text) { return ParseNumber<std::uint32_t>(text); });
  attributes.device = read(kDevice, [](const std::string& text) { return ParseNumber<std::uint64_t>(text, 16); });
  attributes.modified = read(kModified, ParseTime);
  attributes.accessed = read(kAccessed, ParseTime);
  attributes.changed = read(kChanged, ParseTime);
  attributes.xattrs = read(kXattr, ParseXattrs);
  return attributes;
}

Status ToMetadata(const StoredAttributes& attributes, UserMetadata& metadata) {
  UserMetadata next = metadata;
  for (const char* name :
       {kMode, kUid, kGid, kDevice, kModified, kAccessed, kChanged, kXattr, kRenameKey, kRenameSourceKey})
    next.erase(name);
  if (attributes.mode) next[kMode] = std::to_string(*attributes.mode);
  if (attributes.uid) next[kUid] = std::to_string(*attributes.uid);
  if (attributes.gid) next[kGid] = std::to_string(*attributes.gid);
  if (attributes.device) next[kDevice] = fmt::format("{:x}", *attributes.device);
  if (attributes.modified) next[kModified] = FormatTime(*attributes.modified);
  if (attributes.accessed) next[kAccessed] = FormatTime(*attributes.accessed);
  if (attributes.changed) next[kChanged] = FormatTime(*attributes.changed);
  if (!attributes.xattrs.empty()) next[kXattr] = FormatXattrs(attributes.xattrs);
  std::size_t bytes = 0;
  for (const auto& [name, value] : next) bytes += name.size() + value.size();
  if (bytes > kMaxMetadataBytes) {
    return Fail(Code::kNoSpace, "an object holds {} bytes of metadata; these attributes need {}", kMaxMetadataBytes,
                bytes);
  }
  metadata = std::move(next);
  return {};
}

void ForgetTimes(UserMetadata& metadata) {
  for (const char* name : {kModified, kAccessed, kChanged, kRenameKey, kRenameSourceKey}) metadata.erase(name);
}

}  // namespace millrace::vfs

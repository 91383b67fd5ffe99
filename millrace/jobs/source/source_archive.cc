#include "millrace/jobs/source/source_archive.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "millrace/base/files/confine.h"
#include "millrace/base/files/files.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/jobs/source/ignore_rules.h"
#include "millrace/object/blocking.h"

namespace millrace::jobs {
namespace {

// POSIX.1-2017, pax: "ustar Interchange Format" and "pax Interchange Format".
constexpr std::size_t kTarBlock = 512;
constexpr std::size_t kNameField = 100, kModeAt = 100, kOwnerAt = 108, kGroupAt = 116, kSizeAt = 124, kTimeAt = 136,
                      kChecksumAt = 148, kTypeAt = 156, kLinkAt = 157, kMagicAt = 257;
constexpr char kFileType = '0', kLinkType = '2', kFolderType = '5', kPaxType = 'x';
constexpr std::string_view kMagic("ustar\00000", 8);
constexpr std::string_view kPathKey = "path", kLinkKey = "linkpath";
constexpr std::string_view kNamePrefix = "sha256-", kNameSuffix = ".tar";
constexpr std::size_t kDigestDigits = 64;
constexpr std::string_view kAlwaysIgnored = ".git/\n__pycache__/\n";

/// What one entry of an archive is.
struct SourceEntry {
  char type = kFileType;
  std::string path;  ///< below the folder
  std::string link;  ///< where a link leads
  bool is_executable = false;
  std::string_view content;
};

/// Returns why a link cannot be packed or unpacked; "" if it stays in the folder. ".." may only stand at its beginning:
/// then it counts from the link's own folder, which is no link, and by induction no chain of links leads out.
std::string WhyLinkLeaves(std::string_view path, std::string_view target) {
  if (target.empty() || target.starts_with('/')) return "is an absolute path";
  auto depth = std::ranges::count(path, '/');
  bool climbs = true;
  for (const std::string_view part : Split(target, '/')) {
    if (part.empty() || part == ".") continue;
    climbs = climbs && part == "..";
    if (part != "..") continue;
    if (!climbs) return "has \"..\" behind the name of a folder";
    if (--depth < 0) return "leaves the folder";
  }
  return "";
}

std::string Octal(std::uint64_t value, int digits) { return fmt::format("{:0{}o}", value, digits); }

std::string TarHeader(char type, std::string_view name, std::string_view link, std::uint64_t size, bool is_executable) {
  std::string header(kTarBlock, '\0');
  const auto put = [&](std::size_t at, std::string_view text) { header.replace(at, text.size(), text); };
  put(0, name.substr(0, kNameField));
  put(kModeAt, is_executable ? "0000755" : "0000644");
  put(kOwnerAt, Octal(0, 7));
  put(kGroupAt, Octal(0, 7));
  put(kSizeAt, Octal(size, 11));
  put(kTimeAt, Octal(0, 11));
  put(kChecksumAt, "        ");
  header[kTypeAt] = type;
  put(kLinkAt, link.substr(0, kNameField));
  put(kMagicAt, kMagic);
  std::uint64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(kChecksumAt, Octal(sum, 6));
  header[kChecksumAt + 6] = '\0';
  return header;
}

void AppendPadded(std::string& archive, std::string_view content) {
  archive += content;
  archive.append((kTarBlock - content.size() % kTarBlock) % kTarBlock, '\0');
}

/// "LENGTH KEY=VALUE\n", where LENGTH counts its own digits.
std::string PaxRecord(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest + std::to_string(rest).size();
  length = rest + std::to_string(length).size();
  return fmt::format("{} {}={}\n", length, key, value);
}

void AppendEntry(std::string& archive, const SourceEntry& entry) {
  std::string pax;
  if (entry.path.size() > kNameField) pax += PaxRecord(kPathKey, entry.path);
  if (entry.link.size() > kNameField) pax += PaxRecord(kLinkKey, entry.link);
  if (!pax.empty()) {
    archive += TarHeader(kPaxType, "PaxHeader", "", pax.size(), false);
    AppendPadded(archive, pax);
  }
  archive += TarHeader(entry.type, entry.path, entry.link, entry.content.size(), entry.is_executable);
  AppendPadded(archive, entry.content);
}

/// Walks a folder and packs it.
class Packer {
 public:
  Packer(const std::filesystem::path& root, const SourceLimits& limits) : root_(root), limits_(limits) {}

  Result<SourceArchive> Pack() {
    rules_.Add(kAlwaysIgnored);
    constexpr std::uint64_t kMaxRules = kMiB;
    if (const auto own = ReadFile(root_ / kIgnoreFile, kMaxRules)) {
      rules_.Add(*own);
    } else if (own.error().code() != Code::kNotFound) {
      return Fail(own.error());
    }
    MR_TRY(PackFolder(""));
    if (archive_.files == 0) {
      return Fail(Code::kInvalidArgument, "there is no file in {}; add the program, or change run.source",
                  root_.string());
    }
    archive_.bytes.append(2 * kTarBlock, '\0');
    archive_.name = fmt::format("{}{}{}", kNamePrefix, HexEncode(Sha256(AsBytes(archive_.bytes))), kNameSuffix);
    return std::move(archive_);
  }

 private:
  Status PackFolder(const std::string& path) {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator each(root_ / path, error), end; !error && each != end;
         each.increment(error)) {
      names.push_back(each->path().filename().string());
    }
    if (error) return Fail(Code::kIo, "cannot list {}: {}", (root_ / path).string(), error.message());
    std::ranges::sort(names);
    for (const std::string& name : names) MR_TRY(PackOne(path.empty() ? name : fmt::format("{}/{}", path, name)));
    return {};
  }

  Status PackOne(const std::string& path) {
    const std::filesystem::path whole = root_ / path;
    struct stat info{};
    if (::lstat(whole.c_str(), &info) != 0) return Fail(ErrnoError(errno, "cannot look at " + whole.string()));
    const bool is_folder = S_ISDIR(info.st_mode);
    if (rules_.Ignores(path, is_folder)) return {};
    if (const Status good = CheckConfined(path, "", "run.source"); !good) {
      return Fail(Code::kInvalidArgument, "{}; {}", good.error().message(), Cure());
    }
    if (++entries_ > limits_.entries) {
      return Fail(Code::kResourceExhausted, "{} has more than {} files and folders; {}", root_.string(),
                  FormatCount(limits_.entries), Cure());
    }
    SourceEntry entry{.path = path};
    if (is_folder) {
      entry.type = kFolderType;
      entry.is_executable = true;
      AppendEntry(archive_.bytes, entry);
      return PackFolder(path);
    }
    ++archive_.files;
    if (S_ISLNK(info.st_mode)) {
      std::error_code error;
      entry.type = kLinkType;
      entry.link = std::filesystem::read_symlink(whole, error).string();
      if (error) return Fail(Code::kIo, "cannot read the link {}: {}", whole.string(), error.message());
      if (const std::string why = WhyLinkLeaves(path, entry.link); !why.empty()) {
        return Fail(Code::kInvalidArgument,
                    "the link {} leads to {}, which {}: put a copy in its place, or name it in {}", whole.string(),
                    entry.link, why, kIgnoreFile);
      }
      AppendEntry(archive_.bytes, entry);
      return {};
    }
    if (!S_ISREG(info.st_mode)) {
      return Fail(Code::kInvalidArgument, "{} is neither a file, a folder nor a link: name it in {}", whole.string(),
                  kIgnoreFile);
    }
    const auto size = static_cast<std::uint64_t>(info.st_size);
    sizes_.emplace_back(size, path);
    if (archive_.bytes.size() + size > limits_.bytes) return TooLarge();
    const std::string content = MR_TRY(ReadFile(whole, limits_.bytes));
    entry.is_executable = (info.st_mode & S_IXUSR) != 0;
    entry.content = content;
    AppendEntry(archive_.bytes, entry);
    if (archive_.bytes.size() > limits_.bytes) return TooLarge();
    return {};
  }

  Status TooLarge() {
    std::ranges::sort(sizes_, std::greater<>());
    constexpr std::size_t kNamed = 3;
    sizes_.resize(std::min(sizes_.size(), kNamed));
    std::vector<std::string> largest;
    for (const auto& [size, path] : sizes_) largest.push_back(fmt::format("{} ({})", path, FormatBytes(size)));
    return Fail(Code::kResourceExhausted, "{} is larger than {}, which is the most for run.source; it has {}; {}",
                root_.string(), FormatBytes(limits_.bytes), fmt::join(largest, ", "), Cure());
  }

  static std::string Cure() {
    return fmt::format("name in {} what the program does not need, and keep data in a bucket", kIgnoreFile);
  }

  const std::filesystem::path& root_;
  const SourceLimits& limits_;
  IgnoreRules rules_;
  SourceArchive archive_;
  std::size_t entries_ = 0;
  std::vector<std::pair<std::uint64_t, std::string>> sizes_;
};

Error NoArchive(std::string_view why) {
  return Error(Code::kCorrupt, fmt::format("the archive is not one that `run.source` makes: {}", why));
}

Result<std::uint64_t> OctalAt(std::string_view header, std::size_t at, std::size_t digits) {
  std::uint64_t value = 0;
  for (const char c : header.substr(at, digits)) {
    if (c < '0' || c > '7') return Fail(NoArchive("a number is no number"));
    value = value * 8 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

std::string FieldAt(std::string_view header, std::size_t at) {
  const std::string_view field = header.substr(at, kNameField);
  return std::string(field.substr(0, field.find('\0')));
}

/// Reads the entries of an archive one by one.
class EntryReader {
 public:
  explicit EntryReader(std::string_view archive) : rest_(archive) {}

  /// Returns nothing at the end of the archive.
  Result<std::optional<SourceEntry>> Next() {
    SourceEntry entry;
    std::string path, link;
    for (;;) {
      if (rest_.size() < kTarBlock) return Fail(NoArchive("it ends too early"));
      const std::string_view header = rest_.substr(0, kTarBlock);
      if (header.find_first_not_of('\0') == header.npos) return std::nullopt;
      const std::uint64_t size = MR_TRY(OctalAt(header, kSizeAt, 11));
      if (size > rest_.size() - kTarBlock) return Fail(NoArchive("it ends too early"));
      entry.type = header[kTypeAt];
      entry.content = rest_.substr(kTarBlock, size);
      rest_.remove_prefix(
          std::min<std::size_t>(rest_.size(), kTarBlock + (size + kTarBlock - 1) / kTarBlock * kTarBlock));
      if (entry.type == kPaxType) {
        MR_TRY(ReadPax(entry.content, path, link));
        continue;
      }
      entry.path = path.empty() ? FieldAt(header, 0) : path;
      entry.link = link.empty() ? FieldAt(header, kLinkAt) : link;
      entry.is_executable = (MR_TRY(OctalAt(header, kModeAt, 7)) & S_IXUSR) != 0;
      return entry;
    }
  }

 private:
  static Status ReadPax(std::string_view records, std::string& path, std::string& link) {
    while (!records.empty()) {
      const std::size_t end = records.find('\n'), space = records.find(' '), equals = records.find('=');
      if (end == records.npos || space > equals || equals > end) return Fail(NoArchive("a long name is damaged"));
      const std::string_view key = records.substr(space + 1, equals - space - 1);
      const std::string_view value = records.substr(equals + 1, end - equals - 1);
      if (key == kPathKey) path = value;
      if (key == kLinkKey) link = value;
      records.remove_prefix(end + 1);
    }
    return {};
  }

  std::string_view rest_;
};

Status WriteEntry(const SourceEntry& entry, const std::filesystem::path& path) {
  if (entry.type == kFolderType) {
    return ::mkdir(path.c_str(), 0755) == 0 ? Status() : Fail(ErrnoError(errno, "cannot make " + path.string()));
  }
  const UniqueFd file =
      MR_TRY(OpenFile(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, entry.is_executable ? 0755 : 0644));
  return WriteFully(file.get(), AsBytes(entry.content), 0, path.string());
}

}  // namespace

Result<SourceArchive> PackSource(const std::filesystem::path& folder, const SourceLimits& limits) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return Fail(Code::kNotFound, "there is no folder {}; create it, or change run.source", folder.string());
  }
  return Packer(folder, limits).Pack();
}

Status UnpackSource(std::string_view archive, const std::filesystem::path& folder, const SourceLimits& limits) {
  if (::mkdir(folder.c_str(), 0700) != 0) return Fail(ErrnoError(errno, "cannot make the folder " + folder.string()));
  EntryReader reader(archive);
  std::vector<SourceEntry> links;
  for (std::size_t entries = 0;; ++entries) {
    std::optional<SourceEntry> entry = MR_TRY(reader.Next());
    if (!entry) break;
    if (entries == limits.entries) return Fail(NoArchive("it has too many entries"));
    MR_TRY(CheckConfined(entry->path, "", "an archive of run.source"));
    if (entry->type == kLinkType) {
      if (const std::string why = WhyLinkLeaves(entry->path, entry->link); !why.empty()) {
        return Fail(NoArchive(fmt::format("the link {} leads to {}, which {}", entry->path, entry->link, why)));
      }
      links.push_back(*std::move(entry));
    } else if (entry->type == kFileType || entry->type == kFolderType) {
      MR_TRY(WriteEntry(*entry, folder / entry->path));
    } else {
      return Fail(NoArchive(fmt::format("{} is of an unknown type", entry->path)));
    }
  }
  std::error_code failed;
  const std::filesystem::path top = std::filesystem::canonical(folder, failed);
  if (failed) return Fail(Code::kIo, "cannot look at {}: {}", folder.string(), failed.message());
  for (const SourceEntry& link : links) {
    // What a link may climb is counted from its path. A path through another link would be counted wrongly.
    const std::filesystem::path path = folder / link.path;
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::canonical(path.parent_path(), error);
    if (error || parent != (top / link.path).parent_path()) {
      return Fail(NoArchive(fmt::format("the link {} is in no folder", link.path)));
    }
    if (::symlink(link.link.c_str(), path.c_str()) != 0) {
      return Fail(ErrnoError(errno, "cannot make the link " + path.string()));
    }
  }
  return {};
}

std::optional<std::string> SourceDigest(std::string_view url) {
  const std::size_t slash = url.rfind('/');
  std::string_view name = slash == url.npos ? url : url.substr(slash + 1);
  if (!name.starts_with(kNamePrefix) || !name.ends_with(kNameSuffix)) return std::nullopt;
  name.remove_prefix(kNamePrefix.size());
  if (name.size() != kDigestDigits + kNameSuffix.size()) return std::nullopt;
  name.remove_suffix(kNameSuffix.size());
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (!std::ranges::all_of(name, is_digit)) return std::nullopt;
  return std::string(name);
}

Result<std::string> PutSource(const object::Location& folder, const SourceArchive& archive, const object::Call& call) {
  std::string key = folder.key + archive.name;
  // Its name stands for its bytes: what is there already is what would be put.
  if (MR_TRY(object::Head(*folder.store, key, call))) return key;
  const auto put = object::Put(*folder.store, key, AsBytes(archive.bytes), {.if_none_match = true}, call);
  if (!put && put.error().code() != Code::kPreconditionFailed) return Fail(put.error());
  return key;
}

Status GetSource(const object::Location& archive, const std::filesystem::path& folder, const object::Call& call) {
  const std::optional<std::string> digest = SourceDigest(archive.key);
  if (!digest) {
    return Fail(Code::kInvalidArgument, "{} is not an archive of run.source: its name should be sha256-DIGEST.tar",
                archive.key);
  }
  const auto content = MR_TRY(object::GetAll(*archive.store, archive.key, SourceLimits{}.bytes, call));
  if (!content) {
    return Fail(Code::kNotFound, "there is no {}: start the job from the folder of its code, which puts it there",
                archive.key);
  }
  if (HexEncode(Sha256(AsBytes(content->bytes))) != *digest) {
    return Fail(Code::kCorrupt,
                "{} has not the bytes that its name stands for: delete it, and start the job from the folder of its "
                "code, which puts it there anew",
                archive.key);
  }
  return UnpackSource(content->bytes, folder);
}

}  // namespace millrace::jobs

#include "millrace/object/local/uploads.h"

#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <tuple>

#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/object/local/walk.h"
#include "millrace/object/rules.h"

namespace millrace::object {
namespace {

// Names in an upload's folder: docs/formats/file-store.md.
constexpr char kDescription[] = "upload";
/// Holds the size of the parts in kWhole, which the first part decides. Locked while a part claims its slot.
constexpr char kGrid[] = "grid";
constexpr std::string_view kPart = "part-", kPlaced = "placed-";
constexpr std::size_t kIdLength = 32;  // 128 random bits in hex
/// Half of the largest file of ext4 with blocks of 4 KiB.
constexpr std::uint64_t kLargestFile = std::uint64_t{8} << 40;

std::string PartName(int number) { return fmt::format("{}{:05}", kPart, number); }
std::string PlacedName(int number) { return fmt::format("{}{:05}", kPlaced, number); }

bool IsUploadId(std::string_view id) {
  return id.size() == kIdLength &&
         std::ranges::all_of(id, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Error NoUpload(const std::string& key, const std::string& id) {
  return Error(Code::kNotFound, fmt::format("no upload {} of {}: completed or aborted before?", id, key));
}

Result<std::vector<std::string>> NamesIn(int folder) {
  UniqueFd copy(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* directory = copy ? fdopendir(copy.get()) : nullptr;
  if (!directory) return Fail(ErrnoError(errno, "reading the folder of an upload"));
  (void)copy.Release();
  std::vector<std::string> names;
  while (const dirent* entry = readdir(directory)) names.emplace_back(entry->d_name);
  closedir(directory);
  std::erase_if(names, [](const std::string& name) { return name == "." || name == ".."; });
  std::ranges::sort(names);
  return names;
}

/// The number that a small file contains; no value while it contains none.
Result<std::optional<std::uint64_t>> ReadNumber(int fd) {
  char text[20];
  const auto keep_going = [] { return Status(); };
  const std::uint64_t length =
      MR_TRY(ReadPieces(fd, AsWritableBytes(std::span(text)), 0, keep_going, "an upload's part"));
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text, text + length, number);
  if (error != std::errc() || end != text + length) return std::nullopt;
  return number;
}

PartInfo InfoOf(int number, const struct stat& status, std::uint64_t size) {
  return {.number = number, .etag = FileETag(status), .size = size};
}

}  // namespace

Result<std::string> FileUploads::Create(const std::string& key, const PutOptions& options) {
  KeyPath path = MR_TRY(PathOfKey(key));
  std::string id = SecureHex(kIdLength / 2);
  std::string name = fmt::format("{}{}", kUploadName, id);
  UniqueFd folder = MR_TRY(root_.MakeFolder(path.folder.empty() ? name : path.folder + "/" + name));
  PendingFile file = MR_TRY(PendingFile::Create(folder.get(), root_.PathOf(key)));
  Json description = {{"key", key}, {"attributes", EncodeAttributes(options.content_type, options.metadata)}};
  MR_TRY(WriteFully(file.fd(), AsBytes(DumpJson(description)), 0, root_.PathOf(key)));
  MR_TRY(file.Publish(kDescription, false, root_.PathOf(key)));
  return id;
}

Result<UniqueFd> FileUploads::OpenFolder(const std::string& key, const std::string& id) const {
  if (!IsUploadId(id)) return Fail(NoUpload(key, id));
  KeyPath path = MR_TRY(PathOfKey(key));
  std::string name = fmt::format("{}{}", kUploadName, id);
  UniqueFd folder =
      MR_TRY(root_.TryOpen(path.folder.empty() ? name : path.folder + "/" + name, O_RDONLY | O_DIRECTORY));
  if (!folder) return Fail(NoUpload(key, id));
  std::optional<Description> description = MR_TRY(Describe(folder.get()));
  if (!description || description->key != key) return Fail(NoUpload(key, id));
  return folder;
}

Result<std::optional<FileUploads::Description>> FileUploads::Describe(int folder) {
  UniqueFd fd(openat(folder, kDescription, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0) return std::nullopt;
  std::string text(std::min<std::uint64_t>(static_cast<std::uint64_t>(status.st_size), kMiB), '\0');
  MR_TRY(ReadExactly(fd.get(), AsWritableBytes(text), 0, "the description of an upload"));
  Json json = MR_TRY(ParseJson(text, "the description of an upload", {.depth = 4}));
  Description description{.key = MR_TRY(JsonString(json, "key")),
                          .initiated = WallTime(std::chrono::seconds(status.st_mtim.tv_sec))};
  MR_TRY(DecodeAttributes(MR_TRY(JsonString(json, "attributes")), "the description of an upload",
                          description.options.content_type, description.options.metadata));
  return description;
}

/// Claims a part's slot in kWhole. The first part decides the size of all slots. No value for a part that is larger,
/// that comes again, or whose slot would lie beyond kLargestFile.
Result<std::optional<FileUploads::PartSlot>> FileUploads::ClaimSlot(int folder, int number, std::uint64_t size,
                                                                    const std::string& key) const {
  const std::string path_name = root_.PathOf(key);
  UniqueFd grid(openat(folder, kGrid, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!grid || flock(grid.get(), LOCK_EX) != 0) return Fail(ErrnoError(errno, "taking a part's place in " + path_name));
  std::optional<std::uint64_t> part_size = MR_TRY(ReadNumber(grid.get()));
  const int make = part_size ? 0 : O_CREAT | O_TRUNC;
  PartSlot slot{UniqueFd(openat(folder, kWhole, O_RDWR | make | O_NOFOLLOW | O_CLOEXEC, 0666))};
  if (!slot.whole && errno == ENOENT) return std::nullopt;  // an interrupted completion has taken the file
  if (!slot.whole) return Fail(ErrnoError(errno, "creating a temporary file for " + path_name));
  if (!part_size) {
    MR_TRY(WriteFully(grid.get(), AsBytes(fmt::format("{}", size)), 0, path_name));
    part_size = size;
  }
  if (size > *part_size) return std::nullopt;
  slot.offset = static_cast<std::uint64_t>(number - 1) * *part_size;
  if (slot.offset + size > kLargestFile) return std::nullopt;
  if (struct stat status; fstatat(folder, PartName(number).c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
    return std::nullopt;
  slot.record =
      UniqueFd(openat(folder, PlacedName(number).c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!slot.record && errno == EEXIST) return std::nullopt;
  if (!slot.record) return Fail(ErrnoError(errno, "taking a part's place in " + path_name));
  return slot;
}

Result<PartInfo> FileUploads::AddPart(const std::string& key, const std::string& id, int number, std::uint64_t size,
                                      WallTime modified,
                                      const std::function<Status(int fd, std::uint64_t offset)>& fill) {
  const std::string path_name = root_.PathOf(key);
  if (number < 1 || number > Limits{}.max_parts) {
    return Fail(Code::kInvalidArgument, "part number {}: numbers go from 1 to {}", number, Limits{}.max_parts);
  }
  UniqueFd folder = MR_TRY(OpenFolder(key, id));
  // After a completion, the file may be the object: no part may be written into it then.
  if (flock(folder.get(), LOCK_SH) != 0) return Fail(ErrnoError(errno, "locking the upload of " + path_name));
  if (!MR_TRY(Describe(folder.get()))) return Fail(NoUpload(key, id));
  struct stat status;
  if (std::optional<PartSlot> slot = MR_TRY(ClaimSlot(folder.get(), number, size, key))) {
    auto write = [&]() -> Status {
      MR_TRY(fill(slot->whole.get(), slot->offset));
      if (durable_ && fdatasync(slot->whole.get()) != 0)
        return Fail(ErrnoError(errno, "syncing a part of " + path_name));
      MR_TRY(WriteFully(slot->record.get(), AsBytes(fmt::format("{}", size)), 0, path_name));
      return SetModified(slot->record.get(), modified, path_name);
    };
    if (Status written = write(); !written) {
      unlinkat(folder.get(), PlacedName(number).c_str(), 0);
      return Fail(written.error());
    }
    if (fstat(slot->record.get(), &status) != 0)
      return Fail(ErrnoError(errno, "reading the state of a part of " + path_name));
    return InfoOf(number, status, size);
  }
  PendingFile file = MR_TRY(PendingFile::Create(folder.get(), path_name));
  MR_TRY(fill(file.fd(), 0));
  MR_TRY(file.Seal(modified, false, path_name));  // not durable yet: completion copies it, and syncs the copy
  MR_TRY(file.Publish(PartName(number), false, path_name));
  if (fstat(file.fd(), &status) != 0) return Fail(ErrnoError(errno, "reading the state of a part of " + path_name));
  return InfoOf(number, status, static_cast<std::uint64_t>(status.st_size));
}

Result<std::vector<PartInfo>> FileUploads::Parts(const std::string& key, const std::string& id) {
  UniqueFd folder = MR_TRY(OpenFolder(key, id));
  struct stat status;
  const bool whole = fstatat(folder.get(), kWhole, &status, AT_SYMLINK_NOFOLLOW) == 0;
  std::map<int, PartInfo> parts;
  // In the order of names, "part-" comes before "placed-": a part with its own file replaces the one in place.
  for (const std::string& name : MR_TRY(NamesIn(folder.get()))) {
    const bool own = name.starts_with(kPart), placed = whole && name.starts_with(kPlaced);
    if (!own && !placed) continue;
    const int number = std::atoi(name.c_str() + (own ? kPart : kPlaced).size());
    UniqueFd fd(openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd || fstat(fd.get(), &status) != 0) continue;
    std::optional<std::uint64_t> size = static_cast<std::uint64_t>(status.st_size);
    if (placed) size = MR_TRY(ReadNumber(fd.get()));
    if (!size || (placed && parts.contains(number))) continue;
    parts[number] = InfoOf(number, status, *size);
  }
  std::vector<PartInfo> list;
  for (auto& [number, part] : parts) list.push_back(std::move(part));
  return list;
}

/// Where the part with this number and ETag is; no value if there is none. `grid`: the size of slots, if kWhole exists.
Result<std::optional<FileUploads::PartRange>> FileUploads::FindPart(int folder, std::optional<std::uint64_t> grid,
                                                                    const PartInfo& part) {
  struct stat status;
  const std::string own = PartName(part.number);
  if (fstatat(folder, own.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    if (FileETag(status) != part.etag) return std::nullopt;
    return PartRange{own, {0, static_cast<std::uint64_t>(status.st_size)}};
  }
  const UniqueFd record(openat(folder, PlacedName(part.number).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!grid || !record || fstat(record.get(), &status) != 0 || FileETag(status) != part.etag) return std::nullopt;
  const std::optional<std::uint64_t> size = MR_TRY(ReadNumber(record.get()));
  if (!size) return std::nullopt;
  return PartRange{kWhole, {static_cast<std::uint64_t>(part.number - 1) * *grid, *size}};
}

Result<FileUploads::Assembly> FileUploads::Open(const std::string& key, const std::string& id,
                                                const std::vector<PartInfo>& parts) {
  Assembly assembly;
  assembly.folder = MR_TRY(OpenFolder(key, id));
  const int folder = assembly.folder.get();
  if (flock(folder, LOCK_EX) != 0) return Fail(ErrnoError(errno, "locking the upload of " + root_.PathOf(key)));
  std::optional<Description> description = MR_TRY(Describe(folder));
  if (!description) return Fail(NoUpload(key, id));  // another completion was faster
  assembly.options = std::move(description->options);
  struct stat whole;
  std::optional<std::uint64_t> part_size;
  if (fstatat(folder, kWhole, &whole, AT_SYMLINK_NOFOLLOW) == 0) {
    const UniqueFd grid(openat(folder, kGrid, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (grid) part_size = MR_TRY(ReadNumber(grid.get()));
  }
  std::uint64_t end = 0;
  bool in_place = part_size.has_value();
  for (const PartInfo& part : parts) {
    std::optional<PartRange> piece = MR_TRY(FindPart(folder, part_size, part));
    if (!piece) {
      return Fail(Code::kInvalidArgument,
                  "part {} of {} was not uploaded, or has another ETag; upload it again, or start the upload anew",
                  part.number, key);
    }
    in_place = in_place && piece->file == kWhole && piece->range.offset == end;
    end += piece->range.length;
    assembly.parts.push_back(*std::move(piece));
  }
  assembly.in_place = in_place && std::cmp_equal(whole.st_size, end);  // kWhole may have further parts
  return assembly;
}

Status FileUploads::Remove(const std::string& key, const std::string& id) {
  UniqueFd folder = MR_TRY(OpenFolder(key, id));
  // First the description: without it, the upload does not exist any more, even if the rest remains.
  unlinkat(folder.get(), kDescription, 0);
  KeyPath path = MR_TRY(PathOfKey(key));
  UniqueFd above = MR_TRY(root_.TryOpen(path.folder, O_RDONLY | O_DIRECTORY));
  std::string name = fmt::format("{}{}", kUploadName, id);
  // A part that is being written may appear between the sweep and the removal of the folder.
  for (int sweep = 0; sweep < 8; ++sweep) {
    for (const std::string& file : MR_TRY(NamesIn(folder.get()))) unlinkat(folder.get(), file.c_str(), 0);
    if (!above || unlinkat(above.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  }
  return Fail(ErrnoError(errno, "removing the parts of " + root_.PathOf(key)));
}

Result<std::vector<UploadInfo>> FileUploads::List(const std::string& prefix, const KeepGoing& keep_going) {
  std::vector<std::pair<std::string, std::string>> folders;
  TreeWalker walker(root_, {.prefix = prefix, .on_reserved = [&](const std::string& folder, const std::string& name) {
                              if (name.starts_with(kUploadName)) folders.emplace_back(folder, name);
                            }});
  while (MR_TRY(walker.Peek())) {
    MR_TRY(keep_going());
    walker.Advance();
  }
  std::vector<UploadInfo> uploads;
  for (const auto& [key_folder, name] : folders) {
    std::string path = MR_TRY(PathOfKey(key_folder + "x")).folder;
    UniqueFd folder = MR_TRY(root_.TryOpen(path.empty() ? name : path + "/" + name, O_RDONLY | O_DIRECTORY));
    if (!folder) continue;
    std::optional<Description> description = MR_TRY(Describe(folder.get()));
    if (!description || !description->key.starts_with(prefix)) continue;
    uploads.push_back({description->key, name.substr(kUploadName.size()), description->initiated});
  }
  std::ranges::sort(uploads, {}, [](const UploadInfo& upload) { return std::tie(upload.key, upload.upload_id); });
  return uploads;
}

}  // namespace millrace::object

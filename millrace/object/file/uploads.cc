#include "millrace/object/file/uploads.h"

#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

#include "millrace/base/json.h"
#include "millrace/base/random.h"
#include "millrace/object/file/walk.h"
#include "millrace/object/rules.h"

namespace millrace::object {
namespace {

constexpr char kDescription[] = "upload";
constexpr std::string_view kPart = "part-";
constexpr std::size_t kIdLength = 32;

std::string PartName(int number) { return fmt::format("{}{:05}", kPart, number); }

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

}  // namespace

Result<std::string> FileUploads::Create(const std::string& key, const PutOptions& options) {
  KeyPath path = MR_TRY(PathOfKey(key));
  std::string id = SecureHex(kIdLength / 2);
  std::string name = fmt::format("{}{}", kUploadName, id);
  UniqueFd folder = MR_TRY(root_.MakeFolder(path.folder.empty() ? name : path.folder + "/" + name));
  PendingFile file = MR_TRY(PendingFile::Create(folder.get(), key));
  Json description = {{"key", key}, {"attributes", EncodeAttributes(options.content_type, options.metadata)}};
  MR_TRY(WriteFully(file.fd(), AsBytes(DumpJson(description)), 0, key));
  MR_TRY(file.Publish(kDescription, false, key));
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
  Json json = MR_TRY(ParseJson(text, "the description of an upload", 4));
  Description description{.key = MR_TRY(JsonString(json, "key")),
                          .initiated = WallTime(std::chrono::seconds(status.st_mtim.tv_sec))};
  MR_TRY(DecodeAttributes(MR_TRY(JsonString(json, "attributes")), "the description of an upload",
                          description.options.content_type, description.options.metadata));
  return description;
}

Result<PartInfo> FileUploads::AddPart(const std::string& key, const std::string& id, int number, WallTime modified,
                                      const std::function<Status(int fd)>& fill) {
  if (number < 1 || number > Limits{}.max_parts) {
    return Fail(Code::kInvalidArgument, "part number {}: numbers go from 1 to {}", number, Limits{}.max_parts);
  }
  UniqueFd folder = MR_TRY(OpenFolder(key, id));
  PendingFile file = MR_TRY(PendingFile::Create(folder.get(), key));
  MR_TRY(fill(file.fd()));
  MR_TRY(file.Seal(modified, false, key));  // durable when the object is: it is written anew on completion
  MR_TRY(file.Publish(PartName(number), false, key));
  struct stat status;
  if (fstat(file.fd(), &status) != 0) return Fail(ErrnoError(errno, "reading the state of a part of " + key));
  return PartInfo{.number = number, .etag = FileETag(status), .size = static_cast<std::uint64_t>(status.st_size)};
}

Result<std::vector<PartInfo>> FileUploads::Parts(const std::string& key, const std::string& id) {
  UniqueFd folder = MR_TRY(OpenFolder(key, id));
  std::vector<PartInfo> parts;
  for (const std::string& name : MR_TRY(NamesIn(folder.get()))) {
    struct stat status;
    if (!name.starts_with(kPart) || fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    parts.push_back({.number = std::atoi(name.c_str() + kPart.size()),
                     .etag = FileETag(status),
                     .size = static_cast<std::uint64_t>(status.st_size)});
  }
  return parts;
}

Result<FileUploads::Assembly> FileUploads::Open(const std::string& key, const std::string& id,
                                                const std::vector<PartInfo>& parts) {
  Assembly assembly;
  assembly.lock = MR_TRY(OpenFolder(key, id));
  int folder = assembly.lock.get();
  if (flock(folder, LOCK_EX) != 0) return Fail(ErrnoError(errno, "locking the upload of " + key));
  std::optional<Description> description = MR_TRY(Describe(folder));
  if (!description) return Fail(NoUpload(key, id));  // another completion was first
  assembly.options = std::move(description->options);
  for (const PartInfo& part : parts) {
    Piece piece{UniqueFd(openat(folder, PartName(part.number).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC))};
    struct stat status{};
    if (!piece.fd || fstat(piece.fd.get(), &status) != 0 || FileETag(status) != part.etag) {
      return Fail(Code::kInvalidArgument, "part {} of {} was not uploaded, or has another ETag", part.number, key);
    }
    piece.size = static_cast<std::uint64_t>(status.st_size);
    assembly.parts.push_back(std::move(piece));
  }
  return assembly;
}

Status FileUploads::Remove(const std::string& key, const std::string& id) {
  UniqueFd folder = MR_TRY(OpenFolder(key, id));
  // The description goes first: without it the upload is no more, whatever happens to the rest.
  unlinkat(folder.get(), kDescription, 0);
  KeyPath path = MR_TRY(PathOfKey(key));
  UniqueFd above = MR_TRY(root_.TryOpen(path.folder, O_RDONLY | O_DIRECTORY));
  std::string name = fmt::format("{}{}", kUploadName, id);
  // A part that is being written now may appear between the sweep and the removal.
  for (int sweep = 0; sweep < 8; ++sweep) {
    for (const std::string& file : MR_TRY(NamesIn(folder.get()))) unlinkat(folder.get(), file.c_str(), 0);
    if (!above || unlinkat(above.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  }
  return Fail(ErrnoError(errno, "removing the parts of " + key));
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

#include "millrace/s3d/storage/blob.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <unordered_set>

namespace millrace::s3d {
namespace {

/// Bodies up to this size share files. Creating and syncing a file for each would cost more than writing it.
constexpr std::size_t kSmallBody = 64 * kKiB;
/// A pack is closed at this size. A larger pack would keep more dead bytes until its last object is gone.
constexpr std::uint64_t kPackBytes = 64 * kMiB;
/// Writing a large body to the disk begins after each this many bytes, so that the final sync has little left to do.
constexpr std::uint64_t kWriteBehind = 4 * kMiB;

constexpr std::size_t kNameDigits = 16;  // a 64-bit id in hexadecimal
constexpr char kBlobsFolder[] = "blobs";

std::string NameOf(std::uint64_t id) { return fmt::format("{:016x}", id); }

NameForm BlobNameForm(std::string_view name) {
  return IsHexName(name, kNameDigits) ? NameForm::kFile : NameForm::kForeign;
}

/// "journal.", 16 digits and ".tmp" is a journal that was being replaced.
NameForm RootNameForm(std::string_view name) {
  constexpr std::string_view kJournal = "journal", kNewJournal = "journal.", kTemporary = ".tmp";
  if (name == kBlobsFolder) return NameForm::kFolder;
  if (name == "lock" || name == kJournal) return NameForm::kFile;
  const bool fresh = name.starts_with(kNewJournal) && name.ends_with(kTemporary) &&
                     name.size() == kNewJournal.size() + kNameDigits + kTemporary.size() &&
                     IsHexName(name.substr(kNewJournal.size(), kNameDigits), kNameDigits);
  return fresh ? NameForm::kFile : NameForm::kForeign;
}

constexpr FolderRole kRootRole = {.what = "the folder of s3d", .cure = "choose another one with --root"};
constexpr ManagedFolder::Format kRootKind = {
    .purpose = "s3d", .version = 1, .role = kRootRole, .legacy_file = "journal", .name_form = &RootNameForm};
constexpr ManagedFolder::Format kBlobsKind = {
    .purpose = "s3d", .version = 1, .role = kRootRole, .legacy_file = "", .name_form = &BlobNameForm};

}  // namespace

Result<ManagedFolder> OpenRootFolder(const std::filesystem::path& root) { return ManagedFolder::Open(root, kRootKind); }

Blob::~Blob() {
  if (store_.removes_) (void)store_.folder_.Remove(NameOf(id_));
}

Result<std::shared_ptr<const UniqueFd>> Blob::Open() {
  MutexLock lock(mutex_);
  if (auto open = shared_.lock()) return open;
  auto fd = std::make_shared<const UniqueFd>(MR_TRY(store_.folder_.OpenFile(NameOf(id_), O_RDONLY)));
  shared_ = fd;
  if (is_pack()) kept_ = fd;
  return fd;
}

Extents Slice(const Extents& extents, std::uint64_t offset, std::uint64_t length) {
  Extents slice;
  for (const Extent& extent : extents) {
    if (length == 0) break;
    if (offset >= extent.length) {
      offset -= extent.length;
      continue;
    }
    std::uint64_t taken = std::min(length, extent.length - offset);
    slice.push_back({extent.blob, extent.offset + offset, taken});
    offset = 0;
    length -= taken;
  }
  return slice;
}

BlobStore::BlobStore(ManagedFolder folder)
    : folder_(std::move(folder)), names_group_([this] { return folder_.Sync(); }) {}

Result<std::unique_ptr<BlobStore>> BlobStore::Open(const ManagedFolder& root) {
  ManagedFolder folder = MR_TRY(root.Below(kBlobsFolder, kBlobsKind));
  // Earlier releases made the folder readable for everybody.
  if (::fchmod(folder.fd(), S_IRWXU) != 0)
    return Fail(ErrnoError(errno, fmt::format("closing {}", folder.path().string())));
  return std::unique_ptr<BlobStore>(new BlobStore(std::move(folder)));
}

Status BlobStore::SyncEverything() {
  if (syncfs(folder_.fd()) != 0) return Fail(ErrnoError(errno, fmt::format("syncing {}", folder_.path().string())));
  return {};
}

Result<std::uint64_t> BlobStore::FileSize(const Blob& blob) const {
  const UniqueFd fd = MR_TRY(folder_.OpenFile(NameOf(blob.id()), O_RDONLY));
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return Fail(ErrnoError(errno, PathOf(blob.id())));
  return static_cast<std::uint64_t>(info.st_size);
}

std::string BlobStore::PathOf(std::uint64_t id) const { return folder_.path() / NameOf(id); }

std::shared_ptr<Blob> BlobStore::Adopt(std::uint64_t id) {
  MutexLock lock(mutex_);
  std::weak_ptr<Blob>& known = adopted_[id];
  if (auto blob = known.lock()) return blob;
  auto blob = std::make_shared<Blob>(*this, id);
  known = blob;
  return blob;
}

Status BlobStore::Settle() {
  MutexLock lock(mutex_);
  std::unordered_set<std::uint64_t> present;
  std::uint64_t highest = 0;
  for (const std::string& name : MR_TRY(folder_.Names())) {
    std::uint64_t id = 0;
    std::from_chars(name.data(), name.data() + name.size(), id, 16);
    highest = std::max(highest, id);
    auto known = adopted_.find(id);
    if (known == adopted_.end() || known->second.expired()) {
      MR_TRY(folder_.Remove(name));
    } else {
      present.insert(id);
    }
  }
  for (const auto& [id, blob] : adopted_) {
    highest = std::max(highest, id);
    if (!blob.expired() && !present.contains(id)) {
      return Fail(Code::kCorrupt,
                  "{} is missing: objects whose bytes it holds cannot be served; restore it from a copy", PathOf(id));
    }
  }
  next_number_ = highest / 2 + 1;
  adopted_.clear();
  removes_ = true;
  return {};
}

Result<BlobStore::NewFile> BlobStore::Create(bool pack) {
  std::uint64_t id = next_number_.fetch_add(1) * 2 + (pack ? 1 : 0);
  UniqueFd fd = MR_TRY(folder_.OpenFile(NameOf(id), O_RDWR | O_CREAT | O_EXCL));
  return NewFile{std::make_shared<Blob>(*this, id), std::move(fd)};
}

Result<Extent> BlobStore::AppendToPack(ByteSpan bytes) {
  std::shared_ptr<Pack> pack;
  std::uint64_t offset = 0;
  {
    MutexLock lock(mutex_);
    if (!pack_ || pack_->size >= kPackBytes) {
      NewFile file = MR_TRY(Create(true));
      MR_TRY(SyncNames());
      pack_ = std::make_shared<Pack>();
      pack_->blob = std::move(file.blob);
      pack_->fd = std::move(file.fd);
      pack_->group = std::make_unique<GroupSync>([fd = pack_->fd.get(), path = PathOf(pack_->blob->id())]() -> Status {
        if (fdatasync(fd) != 0) return Fail(ErrnoError(errno, path));
        return {};
      });
    }
    pack = pack_;
    offset = pack->size;
    pack->size += bytes.size();
  }
  // Without the lock: each writer has its own range of the pack.
  MR_TRY(WriteFully(pack->fd.get(), bytes, offset, "a pack of small objects"));
  if (sync_) MR_TRY(pack->group->Sync());
  return Extent{pack->blob, offset, bytes.size()};
}

Status BlobWriter::Append(ByteSpan bytes) {
  if (!file_.fd && size_ + bytes.size() <= kSmallBody) {
    small_.append(AsText(bytes));
    size_ += bytes.size();
    return {};
  }
  if (!file_.fd) MR_TRY(Spill());
  MR_TRY(WriteFully(file_.fd.get(), bytes, size_, "an object"));
  size_ += bytes.size();
  if (store_.sync_ && size_ - behind_ >= kWriteBehind) {
    sync_file_range(file_.fd.get(), static_cast<off_t>(behind_), static_cast<off_t>(size_ - behind_),
                    SYNC_FILE_RANGE_WRITE);
    behind_ = size_;
  }
  return {};
}

Status BlobWriter::Spill() {
  file_ = MR_TRY(store_.Create(false));
  MR_TRY(WriteFully(file_.fd.get(), AsBytes(small_), 0, "an object"));
  small_ = {};
  return {};
}

Result<Extents> BlobWriter::Finish() {
  if (size_ == 0) return Extents();
  if (!file_.fd) return Extents{MR_TRY(store_.AppendToPack(AsBytes(small_)))};
  if (store_.sync_) {
    if (fdatasync(file_.fd.get()) != 0) return Fail(ErrnoError(errno, "storing an object"));
    MR_TRY(store_.SyncNames());
  }
  return Extents{{file_.blob, 0, size_}};
}

}  // namespace millrace::s3d

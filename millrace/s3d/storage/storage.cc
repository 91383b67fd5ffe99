#include "millrace/s3d/storage/storage.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"

namespace millrace::s3d {
namespace {

/// The number of completed uploads whose object a repeated CompleteMultipartUpload gets. Clients repeat within seconds.
constexpr std::size_t kRememberedUploads = 1024;
/// The journal is rewritten when it is longer than twice its content plus this, so that short journals are left alone.
constexpr std::uint64_t kCompactionSlack = 32 * kMiB;

bool IsBucketCharacter(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.'; }

std::unexpected<S3Error> NoSuchBucket() { return Refuse("NoSuchBucket", "The specified bucket does not exist."); }
std::unexpected<S3Error> NoSuchKey() { return Refuse("NoSuchKey", "The specified key does not exist."); }

/// Returns the smallest string that is greater than all strings with the prefix, or "" if there is none.
std::string After(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

/// Returns the same object after copying the bytes of all extents for which `must_move` holds.
template <class Predicate>
Result<ObjectPtr> MoveSmallBodies(const Object& object, const Predicate& must_move, BlobStore& blobs) {
  auto copy = std::make_shared<Object>(object);
  copy->extents.clear();
  for (const Extent& extent : object.extents) {
    if (!must_move(extent)) {
      copy->extents.push_back(extent);
      continue;
    }
    Buffer body(extent.length);
    auto fd = MR_TRY(extent.blob->Open());
    MR_TRY(ReadExactly(fd->get(), body.span(), extent.offset, "a pack of small objects"));
    BlobWriter writer(blobs);
    MR_TRY(writer.Append(body));
    Extents place = MR_TRY(writer.Finish());
    copy->extents.insert(copy->extents.end(), place.begin(), place.end());
  }
  return ObjectPtr(std::move(copy));
}

}  // namespace

bool IsValidBucketName(std::string_view name) {
  if (name.size() < 3 || name.size() > 63 || !std::ranges::all_of(name, IsBucketCharacter)) return false;
  auto is_edge = [](char c) { return c != '-' && c != '.'; };
  auto is_number = [](std::string_view label) {
    return !label.empty() && label.find_first_not_of("0123456789") == label.npos;
  };
  auto labels = Split(name, '.');
  if (labels.size() == 4 && std::ranges::all_of(labels, is_number)) return false;  // an IP address
  return is_edge(name.front()) && is_edge(name.back()) && name.find("..") == std::string_view::npos;
}

Storage::Storage(ManagedFolder root, Clock& clock) : root_(std::move(root)), clock_(clock) {}

Storage::~Storage() {
  if (blobs_) blobs_->KeepAll();
}

Result<std::unique_ptr<Storage>> Storage::Open(const std::filesystem::path& root, bool sync, Clock& clock) {
  ManagedFolder folder = MR_TRY(OpenRootFolder(root));
  std::unique_ptr<Storage> storage(new Storage(std::move(folder), clock));
  MR_TRY(storage->Load(sync));
  return storage;
}

Status Storage::Load(bool sync) {
  root_lock_ = MR_TRY(root_.OpenFile("lock", O_RDWR | O_CREAT));
  if (flock(root_lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Fail(Code::kBusy, "{} is in use by another millrace s3d: give each its own --root", root_.path().string());
  }
  blobs_ = MR_TRY(BlobStore::Open(root_));
  MutexLock lock(mutex_);
  std::uint64_t records = 0;
  auto resolve = [this](std::uint64_t id) { return blobs_->Adopt(id); };
  auto replay = [&](std::string_view bytes) MR_NO_THREAD_SAFETY_ANALYSIS -> Status {
    Apply(MR_TRY(DecodeRecord(bytes, resolve)));
    ++records;
    return {};
  };
  journal_ = MR_TRY(Journal::Open(root_, sync, replay));
  MR_TRY(blobs_->Settle());

  std::uint64_t live = 0;
  for (const auto& [name, bucket] : buckets_) live += 1 + bucket.objects.size() + bucket.uploads.size();
  snapshot_bytes_ = records == 0 ? 0 : journal_->file_bytes() / records * std::min(live, records);
  MR_TRY(TidyPacks(sync));
  if (sync) blobs_->SyncFromNowOn();
  return CompactIfWorthIt();
}

/// Copies the live bytes of packs that are mostly dead to new packs, so that the old files are removed. Runs at each
/// start. Parts of uploads stay where they are.
Status Storage::TidyPacks(bool sync) {
  std::unordered_map<const Blob*, std::uint64_t> live;
  auto each_object = [&](const auto& visit) MR_NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& [name, bucket] : buckets_) {
      for (const auto& [key, object] : bucket.objects) visit(name, key, *object);
    }
  };
  each_object([&](const std::string&, const std::string&, const Object& object) {
    for (const Extent& extent : object.extents) {
      if (extent.blob->is_pack()) live[extent.blob.get()] += extent.length;
    }
  });
  for (auto at = live.begin(); at != live.end();) {
    bool mostly_dead = at->second < MR_TRY(blobs_->FileSize(*at->first)) / 2;
    at = mostly_dead ? std::next(at) : live.erase(at);
  }
  if (live.empty()) return {};

  std::vector<Record> records;
  Status moved;
  each_object([&](const std::string& bucket, const std::string& key, const Object& object) {
    auto must_move = [&](const Extent& extent) { return live.contains(extent.blob.get()); };
    if (!moved || std::ranges::none_of(object.extents, must_move)) return;
    auto copy = MoveSmallBodies(object, must_move, *blobs_);
    if (!copy) {
      moved = Fail(copy.error());
    } else {
      records.push_back({.type = Record::Type::kPutObject, .bucket = bucket, .key = key, .object = std::move(*copy)});
    }
  });
  MR_TRY(std::move(moved));
  if (sync) MR_TRY(blobs_->SyncEverything());
  std::string frames;
  std::vector<Displaced> displaced;
  // New offsets may be longer numbers. An object whose record would not fit any more stays where it is.
  std::erase_if(records, [&](const Record& record) { return !FrameRecord(EncodeRecord(record), frames); });
  MR_TRY(journal_->Append(frames));
  for (const Record& record : records) displaced.push_back(Apply(record));
  return journal_->Sync();
}

WallTime Storage::Now() const { return std::chrono::floor<std::chrono::milliseconds>(clock_.Wall()); }

// --- The index -------------------------------------------------------------------------------------------------------

const Storage::Bucket* Storage::FindBucket(std::string_view name) const {
  auto found = buckets_.find(name);
  return found == buckets_.end() ? nullptr : &found->second;
}

Reply<std::shared_ptr<Upload>> Storage::FindUpload(std::string_view bucket, std::string_view key,
                                                   std::string_view id) const {
  const Bucket* in = FindBucket(bucket);
  if (!in) return NoSuchBucket();
  auto found = in->uploads.find({std::string(key), std::string(id)});
  if (found == in->uploads.end()) {
    return Refuse("NoSuchUpload",
                  "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have "
                  "been aborted or completed.");
  }
  return found->second;
}

Reply<void> Storage::Check(const Bucket& bucket, std::string_view key, const WriteCondition& condition) {
  auto found = bucket.objects.find(key);
  bool exists = found != bucket.objects.end();
  if (condition.if_none_match && exists) {
    return Refuse("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.");
  }
  if (condition.if_match.empty()) return {};
  if (!exists) return NoSuchKey();
  if (condition.if_match != "*" && condition.if_match != found->second->etag) {
    return Refuse("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.");
  }
  return {};
}

Storage::Displaced Storage::Apply(const Record& record) {
  using enum Record::Type;
  Displaced displaced;
  Bucket& bucket = buckets_[record.bucket];
  auto put = [&] {
    ObjectPtr& place = bucket.objects[record.key];
    displaced.push_back(std::exchange(place, record.object));
  };
  auto end_upload = [&] {
    auto found = bucket.uploads.find({record.key, record.upload_id});
    if (found == bucket.uploads.end()) return;
    displaced.push_back(std::move(found->second));
    bucket.uploads.erase(found);
  };
  switch (record.type) {
    case kCreateBucket:
      bucket.created = record.time;
      break;
    case kDeleteBucket:
      displaced.push_back(std::make_shared<Bucket>(std::move(bucket)));
      buckets_.erase(record.bucket);
      break;
    case kPutObject:
      put();
      break;
    case kDeleteObject:
      if (auto found = bucket.objects.find(record.key); found != bucket.objects.end()) {
        displaced.push_back(std::move(found->second));
        bucket.objects.erase(found);
      }
      break;
    case kCreateUpload:
      bucket.uploads[{record.key, record.upload_id}] = std::make_shared<Upload>(record.upload);
      break;
    case kPutPart:
      if (auto found = bucket.uploads.find({record.key, record.upload_id}); found != bucket.uploads.end()) {
        StoredPart& place = found->second->parts[record.part_number];
        displaced.push_back(std::make_shared<StoredPart>(std::exchange(place, record.part)));
      }
      break;
    case kAbortUpload:
      end_upload();
      break;
    case kCompleteUpload:
      put();
      end_upload();
      Remember(record);
      break;
  }
  return displaced;
}

void Storage::Remember(const Record& completed) {
  if (completed_order_.size() == kRememberedUploads) {
    completed_.erase(completed_order_.front());
    completed_order_.pop_front();
  }
  completed_order_.push_back(completed.upload_id);
  completed_[completed.upload_id] = completed.object;
}

// The thread-safety analysis cannot follow a lock that is released through a reference.
Reply<void> Storage::Commit(MutexLock& lock, std::span<const Record> records) MR_NO_THREAD_SAFETY_ANALYSIS {
  std::string frames;
  for (const Record& record : records) MR_TRY(FrameRecord(EncodeRecord(record), frames));
  MR_TRY(journal_->Append(frames));
  std::vector<Displaced> displaced;
  for (const Record& record : records) displaced.push_back(Apply(record));
  Status compacted = CompactIfWorthIt();
  lock.Unlock();
  MR_TRY(journal_->Sync());
  MR_TRY(std::move(compacted));
  return {};
}

Result<std::string> Storage::Snapshot() const {
  using enum Record::Type;
  std::string frames;
  Status framed;
  auto add = [&](const Record& record) {
    if (framed) framed = FrameRecord(EncodeRecord(record), frames);
  };
  for (const auto& [name, bucket] : buckets_) {
    add({.type = kCreateBucket, .bucket = name, .time = bucket.created});
    for (const auto& [key, object] : bucket.objects) {
      add({.type = kPutObject, .bucket = name, .key = key, .object = object});
    }
    for (const auto& [place, upload] : bucket.uploads) {
      const auto& [key, id] = place;
      add({.type = kCreateUpload, .bucket = name, .key = key, .upload_id = id, .upload = *upload});
      for (const auto& [number, part] : upload->parts) {
        add({.type = kPutPart, .bucket = name, .key = key, .upload_id = id, .part_number = number, .part = part});
      }
    }
  }
  MR_TRY(std::move(framed));
  return frames;
}

Status Storage::CompactIfWorthIt() {
  if (journal_->file_bytes() <= 2 * snapshot_bytes_ + kCompactionSlack) return {};
  MR_TRY(journal_->Replace(MR_TRY(Snapshot())));
  snapshot_bytes_ = journal_->file_bytes();
  return {};
}

// --- Buckets ---------------------------------------------------------------------------------------------------------

Reply<void> Storage::CreateBucket(std::string_view name) {
  if (!IsValidBucketName(name)) return Refuse("InvalidBucketName", "The specified bucket is not valid.");
  MutexLock lock(mutex_);
  if (FindBucket(name)) {
    return Refuse("BucketAlreadyOwnedByYou",
                  "Your previous request to create the named bucket succeeded and you own it.");
  }
  Record record{.type = Record::Type::kCreateBucket, .bucket = std::string(name), .time = Now()};
  return Commit(lock, {&record, 1});
}

Reply<void> Storage::DeleteBucket(std::string_view name) {
  MutexLock lock(mutex_);
  const Bucket* bucket = FindBucket(name);
  if (!bucket) return NoSuchBucket();
  if (!bucket->objects.empty()) return Refuse("BucketNotEmpty", "The bucket you tried to delete is not empty.");
  Record record{.type = Record::Type::kDeleteBucket, .bucket = std::string(name)};
  return Commit(lock, {&record, 1});
}

Reply<WallTime> Storage::HeadBucket(std::string_view name) const {
  MutexLock lock(mutex_);
  const Bucket* bucket = FindBucket(name);
  if (!bucket) return NoSuchBucket();
  return bucket->created;
}

std::vector<BucketInfo> Storage::ListBuckets() const {
  MutexLock lock(mutex_);
  std::vector<BucketInfo> all;
  for (const auto& [name, bucket] : buckets_) all.push_back({name, bucket.created});
  return all;
}

// --- Objects ---------------------------------------------------------------------------------------------------------

Reply<ObjectPtr> Storage::Get(std::string_view bucket, std::string_view key) const {
  MutexLock lock(mutex_);
  const Bucket* in = FindBucket(bucket);
  if (!in) return NoSuchBucket();
  auto found = in->objects.find(key);
  if (found == in->objects.end()) return NoSuchKey();
  return found->second;
}

Reply<ObjectPtr> Storage::Put(std::string_view bucket, std::string_view key, Object object,
                              const WriteCondition& condition) {
  auto stored = std::make_shared<const Object>(std::move(object));
  Record record{
      .type = Record::Type::kPutObject, .bucket = std::string(bucket), .key = std::string(key), .object = stored};
  MutexLock lock(mutex_);
  const Bucket* in = FindBucket(bucket);
  if (!in) return NoSuchBucket();
  MR_TRY(Check(*in, key, condition));
  MR_TRY(Commit(lock, {&record, 1}));
  return stored;
}

Reply<void> Storage::Delete(std::string_view bucket, std::span<const std::string> keys,
                            const WriteCondition& condition) {
  MutexLock lock(mutex_);
  const Bucket* in = FindBucket(bucket);
  if (!in) return NoSuchBucket();
  std::vector<Record> records;
  for (const std::string& key : keys) {
    MR_TRY(Check(*in, key, condition));
    if (!in->objects.contains(key)) continue;
    records.push_back({.type = Record::Type::kDeleteObject, .bucket = std::string(bucket), .key = key});
  }
  if (records.empty()) return {};
  return Commit(lock, records);
}

Reply<Listing> Storage::List(std::string_view bucket, const ListQuery& query) const {
  MutexLock lock(mutex_);
  const Bucket* in = FindBucket(bucket);
  if (!in) return NoSuchBucket();
  Listing listing;
  const auto& objects = in->objects;
  auto at = query.after >= query.prefix ? objects.upper_bound(query.after) : objects.lower_bound(query.prefix);
  while (at != objects.end() && at->first.starts_with(query.prefix)) {
    std::size_t cut =
        query.delimiter.empty() ? std::string::npos : at->first.find(query.delimiter, query.prefix.size());
    std::string common = cut == std::string::npos ? "" : at->first.substr(0, cut + query.delimiter.size());
    bool skipped = cut != std::string::npos && common <= query.after;
    if (!skipped) {
      if (listing.entries.size() == static_cast<std::size_t>(query.max_keys)) {
        listing.truncated = true;
        break;
      }
      if (cut == std::string::npos) {
        listing.entries.push_back({at->first, at->second});
      } else {
        listing.entries.push_back({common, nullptr});
      }
    }
    if (cut == std::string::npos) {
      ++at;
    } else {
      std::string next = After(std::move(common));
      at = next.empty() ? objects.end() : objects.lower_bound(next);
    }
  }
  if (query.max_keys == 0) listing.truncated = false;
  return listing;
}

// --- Uploads ---------------------------------------------------------------------------------------------------------

Reply<std::string> Storage::CreateUpload(std::string_view bucket, std::string_view key, Upload upload) {
  std::string id = SecureHex(16);
  Record record{.type = Record::Type::kCreateUpload,
                .bucket = std::string(bucket),
                .key = std::string(key),
                .upload_id = id,
                .upload = std::move(upload)};
  MutexLock lock(mutex_);
  if (!FindBucket(bucket)) return NoSuchBucket();
  MR_TRY(Commit(lock, {&record, 1}));
  return id;
}

Reply<Upload> Storage::GetUpload(std::string_view bucket, std::string_view key, std::string_view id) const {
  MutexLock lock(mutex_);
  return *MR_TRY(FindUpload(bucket, key, id));
}

Reply<void> Storage::PutPart(std::string_view bucket, std::string_view key, std::string_view id, int number,
                             StoredPart part) {
  Record record{.type = Record::Type::kPutPart,
                .bucket = std::string(bucket),
                .key = std::string(key),
                .upload_id = std::string(id),
                .part_number = number,
                .part = std::move(part)};
  MutexLock lock(mutex_);
  MR_TRY(FindUpload(bucket, key, id));
  return Commit(lock, {&record, 1});
}

Reply<void> Storage::AbortUpload(std::string_view bucket, std::string_view key, std::string_view id) {
  Record record{.type = Record::Type::kAbortUpload,
                .bucket = std::string(bucket),
                .key = std::string(key),
                .upload_id = std::string(id)};
  MutexLock lock(mutex_);
  MR_TRY(FindUpload(bucket, key, id));
  return Commit(lock, {&record, 1});
}

Reply<ObjectPtr> Storage::CompleteUpload(std::string_view bucket, std::string_view key, std::string_view id,
                                         const WriteCondition& condition,
                                         const std::function<Reply<Object>(const Upload&)>& assemble) {
  MutexLock lock(mutex_);
  auto upload = FindUpload(bucket, key, id);
  if (!upload) {
    auto before = completed_.find(std::string(id));
    const Bucket* in = FindBucket(bucket);
    if (before == completed_.end() || !in) return std::unexpected(upload.error());
    auto present = in->objects.find(key);
    if (present == in->objects.end() || present->second != before->second.lock())
      return std::unexpected(upload.error());
    return present->second;
  }
  MR_TRY(Check(*FindBucket(bucket), key, condition));
  auto object = std::make_shared<const Object>(MR_TRY(assemble(**upload)));
  Record record{.type = Record::Type::kCompleteUpload,
                .bucket = std::string(bucket),
                .key = std::string(key),
                .upload_id = std::string(id),
                .object = object};
  upload->reset();
  MR_TRY(Commit(lock, {&record, 1}));
  return object;
}

Reply<UploadListing> Storage::ListUploads(std::string_view bucket, const UploadQuery& query) const {
  MutexLock lock(mutex_);
  const Bucket* in = FindBucket(bucket);
  if (!in) return NoSuchBucket();
  UploadListing listing;
  auto at = in->uploads.lower_bound({std::max(query.prefix, query.key_marker), ""});
  for (; at != in->uploads.end() && at->first.first.starts_with(query.prefix); ++at) {
    const auto& [key, id] = at->first;
    bool after_marker = query.upload_id_marker.empty()
                            ? key > query.key_marker
                            : std::pair(key, id) > std::pair(query.key_marker, query.upload_id_marker);
    if (!query.key_marker.empty() && !after_marker) continue;
    if (listing.entries.size() == static_cast<std::size_t>(query.max_uploads)) {
      listing.truncated = true;
      break;
    }
    listing.entries.push_back({key, id, at->second->initiated});
  }
  return listing;
}

}  // namespace millrace::s3d

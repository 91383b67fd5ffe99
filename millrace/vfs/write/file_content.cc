#include "millrace/vfs/write/file_content.h"

#include <algorithm>
#include <cstring>

namespace millrace::vfs {
namespace {

MutableByteSpan Slice(MutableByteSpan bytes, std::uint64_t origin, Interval range) {
  return bytes.subspan(range.begin - origin, range.size());
}

}  // namespace

FileContent::FileContent(StagingArea& staging, std::optional<cache::ObjectVersion> base)
    : staging_(staging), size_(base ? base->size : 0), base_(std::move(base)), base_bytes_(size_) {}

FileContent::FileContent(StagingArea& staging, StagingArea::AdoptedFile left)
    : staging_(staging),
      size_(left.record.size),
      base_(std::move(left.record.base)),
      base_bytes_(left.record.base_bytes),
      staged_(std::move(left.file)),
      kept_(true),
      changed_(std::move(left.record.changed)) {}

FileContent FileContent::Restore(StagingArea& staging, StagingArea::AdoptedFile left) {
  FileContent content(staging, std::move(left));
  content.kept_ = false;
  return content;
}

const IntervalSet& FileContent::Held() const {
  static const IntervalSet kNothing;
  return staged_ ? staged_->held() : kNothing;
}

bool FileContent::IsUnchanged(Interval range) const {
  return base_ && range.end <= base_bytes_ && !changed_.Intersects(range.begin, range.end);
}

// --- Changes ---

Status FileContent::Unfreeze(bool with_bytes) {
  if (!kept_) return {};
  std::unique_ptr<StagedFile> copy;
  if (with_bytes) copy = MR_TRY(staged_->Clone());
  kept_ = false;
  older_ = std::exchange(staged_, std::move(copy));
  return {};
}

Status FileContent::EnsureStaged() {
  if (!staged_) staged_ = MR_TRY(staging_.Create());
  return {};
}

Status FileContent::Write(std::uint64_t offset, ByteSpan bytes) {
  MR_TRY(staged_->Write(offset, bytes));
  changed_.Add(offset, offset + bytes.size());
  size_ = std::max(size_, offset + bytes.size());
  return {};
}

Status FileContent::Zero(std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t on_base = std::clamp(base_bytes_, begin, end);
  if (begin < on_base) MR_TRY(staged_->Zero(begin, on_base));
  staged_->Drop(on_base, end);  // a byte in neither the base nor the staging file is zero
  changed_.Add(begin, end);
  return {};
}

void FileContent::Truncate(std::uint64_t size) {
  const std::uint64_t end = std::min(size, size_);
  upload_only_.Remove(end, IntervalSet::kEnd);
  changed_.Remove(end, IntervalSet::kEnd);
  if (staged_) staged_->Drop(end, IntervalSet::kEnd);
  base_bytes_ = std::min(base_bytes_, end);
  size_ = size;
}

// --- Reading ---

Result<std::vector<Interval>> FileContent::Read(std::uint64_t offset, MutableByteSpan into) const {
  const std::uint64_t end = offset + into.size();
  std::vector<Interval> from_base;
  for (const Interval& gap : Held().Gaps(offset, end)) {
    const std::uint64_t split = std::clamp(base_bytes_, gap.begin, gap.end);
    if (gap.begin < split) from_base.push_back({gap.begin, split});
    std::memset(into.data() + (split - offset), 0, gap.end - split);
  }
  for (const Interval& held : Held().In(offset, end)) {
    MR_TRY(staged_->Read(held.begin, Slice(into, offset, held)));
  }
  return from_base;
}

std::vector<Interval> FileContent::InBase(Interval range) const {
  return Held().Gaps(range.begin, std::clamp(base_bytes_, range.begin, range.end));
}

std::optional<Interval> FileContent::FirstInBase(std::uint64_t from) const {
  const auto gaps = Held().Gaps(std::min(from, base_bytes_), base_bytes_);
  return gaps.empty() ? std::nullopt : std::optional(gaps.front());
}

Status FileContent::StageBase(std::uint64_t offset, ByteSpan bytes) {
  for (const Interval& gap : InBase({offset, offset + bytes.size()})) {
    MR_TRY(staged_->Write(gap.begin, bytes.subspan(gap.begin - offset, gap.size())));
  }
  return {};
}

// --- Room ---

void FileContent::DropUnchanged() {
  if (!staged_ || !base_) return;
  for (const Interval& unchanged : changed_.Gaps(0, base_bytes_)) staged_->Drop(unchanged.begin, unchanged.end);
}

void FileContent::MoveToUpload(Interval range) {
  for (const Interval& held : Held().In(range.begin, range.end)) upload_only_.Add(held.begin, held.end);
  staged_->Drop(range.begin, range.end);
}

// --- The base ---

void FileContent::SetPublished(cache::ObjectVersion version) {
  base_ = std::move(version);
  base_bytes_ = size_;
  changed_.Clear();
  upload_only_.Clear();
}

void FileContent::MoveBase(std::string key, std::string etag) {
  base_ = cache::ObjectVersion{std::move(key), std::move(etag), size_};
}

void FileContent::DropBase() {
  base_.reset();
  base_bytes_ = 0;
}

// --- Records ---

std::string FileContent::Describe(StagedRecord& record) const {
  record.complete = true;
  record.size = size_;
  record.base = base_;
  record.base_bytes = base_bytes_;
  record.held = Held();
  record.changed = changed_;
  return staged_ ? staged_->id() : "";
}

Status FileContent::SaveRecord(StagedRecord record, bool durable) {
  MR_TRY(EnsureStaged());
  Describe(record);
  MR_TRY(staged_->Save(record, durable));
  staged_->LeaveOnDisk();
  kept_ = true;
  DropOlder();
  return {};
}

Status FileContent::SaveUpload(const StagedRecord& record) {
  MR_TRY(EnsureStaged());
  return staged_->Save(record, /*durable=*/false);
}

void FileContent::RemoveRecords() {
  kept_ = false;
  if (staged_) staged_->RemoveRecord();
  DropOlder();
}

void FileContent::GiveUp(const StagedRecord* upload) {
  kept_ = false;
  if (upload == nullptr || !staged_ || !SaveUpload(*upload)) return RemoveRecords();
  staged_->Release();
  DropOlder();
}

void FileContent::LeaveUpload(const StagedRecord& upload) {
  if (!staged_) return;
  staged_->Drop(0, IntervalSet::kEnd);
  if (SaveUpload(upload)) staged_->LeaveOnDisk();
}

void FileContent::DropOlder() {
  if (older_) older_->RemoveRecord();
  older_.reset();
}

}  // namespace millrace::vfs

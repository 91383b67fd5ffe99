#include "millrace/vfs/write/part_upload.h"

#include <algorithm>

namespace millrace::vfs {

/// Returns the first part that reaches beyond `from`.
PartUpload::Parts::iterator PartUpload::FirstPart(std::uint64_t from) {
  auto at = parts_.upper_bound(layout_.IndexOf(std::min(from, layout_.max_size())));
  if (at != parts_.begin() && std::prev(at)->second.range.end > from) --at;
  return at;
}

// --- Which parts to send ---

void PartUpload::Queue(int number, Interval range, bool copied) {
  parts_[number] = UploadPart{.range = range, .copied = copied, .info = {}};
  queue_.push_back(number);
}

void PartUpload::QueuePassed(const FileContent& content, std::uint64_t begin, std::uint64_t end) {
  if (failure_) return;
  for (int number = layout_.IndexOf(begin > 0 ? begin - 1 : 0);; ++number) {
    const Interval range = layout_.Range(number);
    if (range.end >= end) return;
    auto known = FirstPart(range.begin);
    const bool sent = known != parts_.end() && known->second.range.begin < range.end;
    if (!sent && content.IsChanged(range)) Queue(number, range, /*copied=*/false);
  }
}

bool PartUpload::QueueMissing(const FileContent& content) {
  bool missing = in_flight_ > 0;
  const std::uint64_t size = content.size();
  for (std::uint64_t at = 0; at < size;) {
    const int number = layout_.IndexOf(at);
    Interval range = layout_.Range(number);
    range.end = std::min(range.end, size);
    auto known = FirstPart(range.begin);
    if (known != parts_.end() && known->second.range.begin < range.end) {
      at = known->second.range.end;
      continue;
    }
    missing = true;
    bool copy = content.IsUnchanged(range);
    for (Interval more = range; copy && more.end < size; range.end = more.end) {
      more = layout_.Range(layout_.IndexOf(more.end));
      more.end = std::min(more.end, size);
      auto next = FirstPart(more.begin);
      const bool taken = next != parts_.end() && next->second.range.begin < more.end;
      if (taken || !content.IsUnchanged(more) || more.end - range.begin > max_part_bytes_) break;
    }
    Queue(number, range, copy);
    at = range.end;
  }
  return missing;
}

std::optional<int> PartUpload::TakeQueued() {
  if (in_flight_ >= parallel_ || queue_.empty()) return std::nullopt;
  const int number = queue_.front();
  queue_.pop_front();
  ++in_flight_;
  return number;
}

void PartUpload::ClearQueue() {
  for (int number : queue_) parts_.erase(number);
  queue_.clear();
}

void PartUpload::OnChanged(std::uint64_t begin, std::uint64_t end) {
  // A queued part will read the new bytes. But if the file was truncated, the part is too long.
  const bool cut = end == IntervalSet::kEnd;
  for (auto at = FirstPart(begin); at != parts_.end() && at->second.range.begin < end;) {
    UploadPart& part = at->second;
    if (part.range.end <= begin || (part.state == UploadPart::State::kQueued && !cut)) {
      ++at;
    } else if (part.state != UploadPart::State::kSent) {
      part.is_dirty = true;
      ++at;
    } else {
      at = parts_.erase(at);
    }
  }
}

// --- Parts in flight ---

std::optional<Interval> PartUpload::OnSent(int number, Result<object::PartInfo> sent, const std::string& key) {
  UploadPart& part = parts_.at(number);
  std::optional<Interval> in_store;
  if (!sent) {
    Error error = sent.error().Context(fmt::format("part {} of {}", number, key));
    const Code code = error.code();
    if (part.copied && (code == Code::kPreconditionFailed || code == Code::kNotFound)) {
      error = error.WithCode(Code::kStale);  // the base was replaced or deleted
    }
    if (!failure_) failure_ = std::move(error);
    parts_.erase(number);
    ClearQueue();
  } else if (part.is_dirty) {
    parts_.erase(number);
  } else {
    part.state = UploadPart::State::kSent;
    part.info = *std::move(sent);
    if (!part.copied) in_store = part.range;
  }
  --in_flight_;
  ++parts_done_;
  return in_store;
}

std::vector<Interval> PartUpload::SentRanges() const {
  std::vector<Interval> ranges;
  for (const auto& [number, part] : parts_) {
    if (part.state == UploadPart::State::kSent && !part.copied) ranges.push_back(part.range);
  }
  return ranges;
}

std::vector<object::PartInfo> PartUpload::Infos() const {
  std::vector<object::PartInfo> infos;
  for (const auto& [number, part] : parts_) infos.push_back(part.info);
  return infos;
}

// --- The upload ---

void PartUpload::BeginSession(std::string key, WallTime now) {
  session_.key = std::move(key);
  session_.begun = now;
}

void PartUpload::Cancel() {
  ClearQueue();
  stop_.request_stop();
}

PartUpload::Session PartUpload::Reset() {
  stop_ = std::stop_source();
  parts_.clear();
  failure_.reset();
  return std::exchange(session_, {.id = {}, .key = {}, .begun = session_.begun});
}

void PartUpload::Finish() {
  parts_.clear();
  session_.id.clear();
  session_.key.clear();
}

}  // namespace millrace::vfs

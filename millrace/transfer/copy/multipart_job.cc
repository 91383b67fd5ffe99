#include "millrace/transfer/copy/multipart_job.h"

#include <algorithm>
#include <vector>

#include "millrace/object/blocking.h"
#include "millrace/transfer/local/resume.h"
#include "millrace/transfer/stream/window.h"

namespace millrace::transfer {
namespace {

/// One run of a job.
class Runner {
 public:
  Runner(const MultipartJob& job, UploadJournal& journal, const CopySettings& settings, const object::Call& call)
      : job_(job), settings_(settings), call_(call), journal_(journal), part_bytes_(job.part_bytes) {}

  Status Run() {
    if (journal_.entry()) MR_TRY(Continue());
    if (upload_id_.empty()) MR_TRY(Begin());
    Status moved = job_.begin ? job_.begin(part_bytes_, Missing()) : Status();
    if (moved) moved = Move();
    if (moved && job_.check) moved = job_.check();
    if (moved) {
      auto completed = object::CompleteMultipart(job_.to, job_.key, upload_id_, std::move(parts_), job_.put, call_);
      if (!completed) moved = std::unexpected(completed.error());
    }
    if (!moved && journal_.remembers() && WorthKeeping(moved.error().code())) return moved;
    if (!moved) (void)object::AbortMultipart(job_.to, job_.key, upload_id_);
    journal_.Forget();
    return moved;
  }

 private:
  std::size_t count() const { return static_cast<std::size_t>((job_.size + part_bytes_ - 1) / part_bytes_); }
  object::ByteRange RangeOf(std::size_t i) const {
    return {i * part_bytes_, std::min(part_bytes_, job_.size - i * part_bytes_)};
  }

  /// Resumes the upload in the journal if it has the same source and the store still knows it.
  Status Continue() {
    const UploadJournal::PendingUpload& entry = *journal_.entry();
    if (entry.source != job_.source || entry.part_bytes == 0) {
      (void)object::AbortMultipart(job_.to, job_.key, entry.upload_id, call_);
      return {};
    }
    auto listed = object::ListParts(job_.to, job_.key, entry.upload_id, call_);
    if (!listed && WorthKeeping(listed.error().code())) return std::unexpected(listed.error());
    if (!listed) {  // it is gone, or the store does not tell its parts: begin again
      (void)object::AbortMultipart(job_.to, job_.key, entry.upload_id, call_);
      return {};
    }
    part_bytes_ = entry.part_bytes;
    upload_id_ = entry.upload_id;
    parts_.resize(count());
    for (object::PartInfo& part : *listed) {
      std::size_t i = static_cast<std::size_t>(part.number) - 1;
      if (part.number < 1 || i >= count() || part.size != RangeOf(i).length) continue;
      if (!MR_TRY(job_.trust(RangeOf(i), part))) continue;
      if (settings_.on_resumed) settings_.on_resumed(part.size);
      parts_[i] = std::move(part);
    }
    return {};
  }

  std::vector<object::ByteRange> Missing() const {
    std::vector<object::ByteRange> ranges;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].number == 0) ranges.push_back(RangeOf(i));
    }
    return ranges;
  }

  Status Begin() {
    upload_id_ = MR_TRY(object::CreateMultipart(job_.to, job_.key, job_.put, call_));
    parts_.resize(count());
    Status written = journal_.Write({job_.source, part_bytes_, upload_id_});
    if (!written) (void)object::AbortMultipart(job_.to, job_.key, upload_id_);
    return written;
  }

  Status Move() {
    Window window(settings_.parallel_parts, call_);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].number != 0) continue;
      if (!window.Enter()) break;
      job_.send(upload_id_, static_cast<int>(i) + 1, RangeOf(i), window.call(),
                [this, &window, i](Result<object::PartInfo> part) {
                  Status status = part ? Status() : std::unexpected(part.error());
                  if (part) parts_[i] = *std::move(part);
                  if (status && settings_.on_bytes) settings_.on_bytes(RangeOf(i).length);
                  window.Leave(std::move(status));
                });
    }
    return window.Finish();
  }

  const MultipartJob& job_;
  const CopySettings& settings_;
  const object::Call& call_;
  UploadJournal& journal_;
  std::uint64_t part_bytes_;
  std::string upload_id_;
  std::vector<object::PartInfo> parts_;  ///< a part with number 0 is missing
};

}  // namespace

Status RunMultipart(const MultipartJob& job, const CopySettings& settings, const object::Call& call) {
  UploadJournal journal = MR_TRY(OpenJournal(job.to, job.key, settings));
  return RunMultipart(job, journal, settings, call);
}

Status RunMultipart(const MultipartJob& job, UploadJournal& journal, const CopySettings& settings,
                    const object::Call& call) {
  return Runner(job, journal, settings, call).Run();
}

Result<UploadJournal> OpenJournal(const object::Store& to, const std::string& key, const CopySettings& settings) {
  return UploadJournal::Open(settings.journal_folder, to.Describe() + "/" + key);
}

std::uint64_t PartBytesFor(std::uint64_t size, std::uint64_t wanted, const object::Limits& limits) {
  std::uint64_t most = static_cast<std::uint64_t>(limits.max_parts);
  return std::clamp(std::max(wanted, (size + most - 1) / most), limits.min_part, limits.max_part);
}

}  // namespace millrace::transfer

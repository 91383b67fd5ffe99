#include "millrace/vfs/writer.h"

#include <algorithm>

#include "millrace/object/blocking.h"

namespace millrace::vfs {
namespace {

constexpr std::uint64_t kCopyBytes = 1 * kMiB;

}  // namespace

Writer::Writer(Environment environment, Start start)
    : environment_(environment),
      size_(start.base ? start.base->size : 0),
      modified_(environment.clock.Wall().time_since_epoch().count()),
      unpublished_(start.unpublished),
      key_(std::move(start.key)),
      exclusive_(start.exclusive),
      metadata_(start.metadata.value_or(UserMetadata())),
      stored_(std::move(start.base)),
      base_bytes_(size_) {}

Writer::~Writer() = default;

std::optional<cache::ObjectVersion> Writer::stored() const {
  MutexLock lock(mutex_);
  return stored_;
}

Status Writer::Write(std::uint64_t offset, ByteSpan bytes, const object::Call& call) {
  MutexLock lock(mutex_);
  if (failed_) return Fail(*failed_);
  if (offset != size_) {
    return Fail(Code::kUnsupported, "{} can be written only at its end ({}), not at {}", key_, size_.load(), offset);
  }
  if (!abandoned_) {
    MR_TRY(Begin(call));
    if (Status written = upload_->Write(bytes, call); !written) {
      failed_ = written.error().Context(fmt::format("writing {}", key_));
      return Fail(*failed_);
    }
  }
  Changed(size_ + bytes.size(), true);
  return {};
}

Status Writer::Truncate(std::uint64_t size) {
  MutexLock lock(mutex_);
  if (size == size_ && !failed_) return {};
  if (size > 0 && failed_) return Fail(*failed_);
  if (size > 0 && (upload_ || size > base_bytes_)) {
    return Fail(Code::kUnsupported, "{} has {} bytes and cannot be cut or grown to {} now", key_, size_.load(), size);
  }
  upload_.reset();
  failed_.reset();
  base_bytes_ = size;
  Changed(size, has_written_);
  return {};
}

void Writer::Changed(std::uint64_t size, bool written) {
  size_ = size;
  modified_ = environment_.clock.Wall().time_since_epoch().count();
  has_written_ = written;
  unpublished_ = true;
  ForgetTimes(metadata_);
}

Status Writer::Begin(const object::Call& call) {
  if (upload_) return {};
  object::PutOptions put;
  put.if_none_match = exclusive_;
  put.metadata = metadata_;
  if (base_bytes_ > 0) put.if_match = stored_->etag;  // what is built on a version replaces only that one
  upload_ = std::make_unique<transfer::MultipartWriter>(
      environment_.store, environment_.budget, key_,
      transfer::MultipartWriter::Options{
          .part_bytes = environment_.part_bytes, .parallel_parts = environment_.parallel_parts, .put = std::move(put)});
  Status copied = CopyBase(call);
  if (!copied) upload_.reset();  // nothing is lost: the next call tries again
  return copied;
}

Status Writer::CopyBase(const object::Call& call) {
  Buffer piece(std::min(kCopyBytes, base_bytes_));
  for (std::uint64_t at = 0; at < base_bytes_;) {
    const std::uint64_t wanted = std::min<std::uint64_t>(piece.size(), base_bytes_ - at);
    auto got = object::Get(environment_.store, stored_->key,
                           {.range = object::ByteRange{at, wanted}, .if_match = stored_->etag},
                           piece.span().first(wanted), call);
    if (!got && got.error().code() != Code::kPreconditionFailed) return Fail(got.error());
    if (!got || !*got || (*got)->bytes != wanted) {
      return Fail(Code::kStale, "{} was replaced while it was open for writing", stored_->key);
    }
    MR_TRY(upload_->Write(piece.span().first(wanted), call));
    at += wanted;
  }
  return {};
}

Result<std::optional<Metadata>> Writer::Publish(const object::Call& call) {
  MutexLock lock(mutex_);
  if (failed_) return Fail(*failed_);
  if (abandoned_ || !unpublished_) return std::nullopt;
  MR_TRY(Begin(call));
  auto finished = upload_->Finish(call);
  const bool on_base = base_bytes_ > 0;
  if (!finished) {
    Error error = finished.error().Context(fmt::format("publishing {}", key_));
    if (error.code() == Code::kPreconditionFailed && exclusive_) error = error.WithCode(Code::kAlreadyExists);
    if (error.code() == Code::kPreconditionFailed && on_base) error = error.WithCode(Code::kStale);
    failed_ = error;
    return Fail(error);
  }
  upload_.reset();
  exclusive_ = false;
  stored_ = cache::ObjectVersion{key_, finished->etag, finished->size};
  base_bytes_ = finished->size;
  has_written_ = false;
  unpublished_ = false;
  return Metadata{Metadata::State::kFile, finished->size, modified(), finished->etag, environment_.clock.Now()};
}

void Writer::Abandon() {
  MutexLock lock(mutex_);
  abandoned_ = true;
  upload_.reset();
  has_written_ = false;
  unpublished_ = false;
}

void Writer::SetKey(std::string key, std::string etag) {
  MutexLock lock(mutex_);
  key_ = std::move(key);
  stored_ = cache::ObjectVersion{key_, std::move(etag), size_};
}

void Writer::SetMetadata(UserMetadata metadata) {
  MutexLock lock(mutex_);
  metadata_ = std::move(metadata);
}

}  // namespace millrace::vfs

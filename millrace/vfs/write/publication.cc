#include "millrace/vfs/write/publication.h"

#include <algorithm>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/write/writer.h"

namespace millrace::vfs {
namespace {

/// Bytes compared at a time. Two such buffers are in memory, which any memory budget allows. 1 MiB: a guess.
constexpr std::uint64_t kCompareBytes = 1 * kMiB;

/// Returns the ETag that S3 gives an object of these parts: the MD5 of their MD5s. Empty if their ETags are no MD5s.
std::string EtagOfParts(const std::vector<object::PartInfo>& parts) {
  std::vector<std::byte> digests;
  for (const object::PartInfo& part : parts) {
    auto digest = HexDecode(part.etag);
    if (!digest || digest->size() != sizeof(Md5Digest)) return {};
    digests.insert(digests.end(), digest->begin(), digest->end());
  }
  return fmt::format("{}-{}", HexEncode(Md5(digests)), parts.size());
}

/// Returns true if the error says that the version to replace, or to copy from, does not exist any more.
bool MeansReplaced(Code code) {
  return code == Code::kPreconditionFailed || code == Code::kNotFound || code == Code::kStale;
}

}  // namespace

Publication::Publication(Writer& writer, const object::Call& call) : writer_(writer), call_(call) {
  MutexLock lock(writer_.mutex_);
  const FileContent& content = writer_.content_;
  writer_.upload_.ForgetFailure();
  writer_.next_.attempted = true;
  writer_.LogContent();
  size_ = content.size();
  if (content.builds_on_base()) base_etag_ = content.base()->etag;
  exclusive_ = writer_.next_.exclusive;
  // If the key must not exist, a file of the same content is an error for its creator. But a kept content may have been
  // published by an earlier attempt.
  may_be_published_ = !exclusive_ || content.kept() || writer_.next_.restored;
  whole_ = size_ <= writer_.layout_.Range(1).size() && content.readable();
}

Status Publication::PublishContent() {
  auto etag = Send();
  if (!etag) return Fail(Explain(etag.error()));
  Commit(*std::move(etag));
  return {};
}

Result<std::string> Publication::Send() {
  auto etag = whole_ ? PutWhole() : PutParts();
  // A store that lost its answer to a conditional write, and refuses the next try because of the first, says
  // kUnavailable, too.
  const bool answer_lost = !etag && etag.error().code() == Code::kUnavailable && !base_etag_.empty();
  if (!etag && may_be_published_ && (answer_lost || MeansReplaced(etag.error().code()))) {
    if (auto published = FindPublished()) {
      (void)writer_.sender_.DropUpload(call_);
      return *std::move(published);
    }
  }
  // The store does not know the upload any more: begins another one.
  if (!etag && !whole_ && etag.error().code() == Code::kNotFound) etag = PutParts();
  return etag;
}

Error Publication::Explain(const Error& failure) const {
  MutexLock lock(writer_.mutex_);
  Error error = failure.Context(fmt::format("publishing {}", writer_.next_.key));
  if (error.code() == Code::kPreconditionFailed && exclusive_) error = error.WithCode(Code::kAlreadyExists);
  if (error.code() == Code::kPreconditionFailed && !base_etag_.empty()) error = error.WithCode(Code::kStale);
  return error;
}

/// Makes the published version the base.
void Publication::Commit(std::string etag) {
  Metadata now{.state = Metadata::State::kFile, .size = size_, .etag = etag};
  WallTime written;
  Writer::OnPublished on_published;
  {
    MutexLock lock(writer_.mutex_);
    FileContent& content = writer_.content_;
    NextVersion& next = writer_.next_;
    now.modified = written = writer_.modified();
    // The store gives the version a time between the request and now, in whole seconds. Other mounts report that time.
    // ninja records the time of an output when its command ends, and runs the command again if the time is later on
    // another mount. So the time moves to the present second if that began after the last change. A kept content was
    // closed before; its time stays.
    if (!content.kept()) {
      now.modified = std::max(now.modified, WholeSeconds(writer_.environment_.clock.Wall()));
    }
    writer_.upload_.Finish();
    next.expected_etag.clear();
    next.exclusive = next.restored = false;
    content.SetPublished({next.key, std::move(etag), size_});
    writer_.unpublished_ = next.metadata_changed;
    ++writer_.publications_;
    // If metadata changed meanwhile, a kept content stays kept, with a new record: a chmod that succeeded must not be
    // lost.
    if (!writer_.unpublished_ || !content.kept() || !writer_.SaveContent(/*durable=*/false)) content.RemoveRecords();
    writer_.LogContent();
    if (!content.kept() && writer_.environment_.staging.crowded()) writer_.DropUnchanged();
    now.as_of = writer_.environment_.clock.Now();
    on_published = writer_.on_published_;
  }
  if (on_published) on_published(now, written);
}

Result<std::string> Publication::PutWhole() {
  const Writer::Environment& environment = writer_.environment_;
  bool was_longer;
  {
    MutexLock lock(writer_.mutex_);
    was_longer = writer_.upload_.active();
  }
  if (was_longer) (void)writer_.sender_.DropUpload(call_);
  std::string key;
  {
    MutexLock lock(writer_.mutex_);
    key = writer_.next_.key;
  }
  object::PutOptions options = MR_TRY(writer_.base_.NextOptions(call_));
  options.if_match = base_etag_;
  options.if_none_match = exclusive_;
  Reservation reservation = MR_TRY(environment.budget.Acquire(size_, call_.stop));
  Buffer content(size_);
  MR_TRY(writer_.base_.Assemble({0, size_}, content.span(), std::nullopt, call_));
  if (!base_etag_.empty()) Expect(HexEncode(Md5(content.span())));
  return MR_TRY(object::Put(environment.store, std::move(key), content.span(), std::move(options), call_)).etag;
}

Result<std::string> Publication::PutParts() {
  std::vector<object::PartInfo> parts;
  PartUpload::Session session;
  std::optional<Error> failure;
  bool readable;
  {
    MutexLock lock(writer_.mutex_);
    while (!failure && writer_.SendMissing()) {
      MR_TRY(writer_.Await(call_, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return writer_.upload_.idle(); }));
      failure = writer_.upload_.failure();
    }
    readable = writer_.content_.readable();
    parts = writer_.upload_.Infos();
    session = writer_.upload_.session();
  }
  if (failure) {
    if (failure->code() == Code::kNotFound && readable) (void)writer_.sender_.DropUpload(call_);
    return Fail(*failure);
  }
  if (!base_etag_.empty()) Expect(EtagOfParts(parts));
  auto completed = object::CompleteMultipart(writer_.environment_.store, session.key, session.id, std::move(parts),
                                             {.if_match = base_etag_, .if_none_match = exclusive_}, call_);
  if (completed) return std::move(completed->etag);
  if (completed.error().code() == Code::kNotFound && readable) (void)writer_.sender_.DropUpload(call_);
  return Fail(completed.error());
}

/// Records the ETag that the publication will give the content. When it replaces the base, bytes of the base can be
/// read only from the new version. After a crash, the ETag shows whether the publication was done.
void Publication::Expect(std::string etag) {
  MutexLock lock(writer_.mutex_);
  writer_.next_.expected_etag = std::move(etag);
  // A failure is harmless: the present record has everything but the ETag.
  if (writer_.content_.kept()) (void)writer_.SaveContent(/*durable=*/false);
  writer_.LogContent();
}

/// Returns the ETag of the version under the key, if it has exactly this content. If the store's answer is lost and the
/// request is sent again, the second request fails because of the first. The version's metadata may be older.
std::optional<std::string> Publication::FindPublished() {
  std::string key, expected;
  bool readable;
  {
    MutexLock lock(writer_.mutex_);
    key = writer_.next_.key;
    expected = writer_.next_.expected_etag;
    readable = writer_.content_.readable();
  }
  auto info = object::Head(writer_.environment_.store, key, call_);
  if (!info || !*info || (*info)->size != size_) return std::nullopt;
  bool other_metadata;
  {
    MutexLock lock(writer_.mutex_);
    other_metadata = writer_.next_.metadata && *writer_.next_.metadata != (*info)->metadata;
  }
  const std::string& etag = (*info)->etag;
  if (etag != expected && !(readable && HasSameBytes(key, etag))) return std::nullopt;
  MutexLock lock(writer_.mutex_);
  writer_.next_.metadata_changed = writer_.next_.metadata_changed || other_metadata;
  return etag;
}

bool Publication::HasSameBytes(const std::string& key, const std::string& etag) {
  const Writer::Environment& environment = writer_.environment_;
  auto reservation = environment.budget.Acquire(2 * kCompareBytes, call_.stop);
  if (!reservation) return false;
  Buffer theirs(kCompareBytes), ours(kCompareBytes);
  for (std::uint64_t at = 0; at < size_; at += kCompareBytes) {
    const std::uint64_t length = std::min(kCompareBytes, size_ - at);
    const MutableByteSpan a = theirs.span().first(length), b = ours.span().first(length);
    auto got =
        object::Get(environment.store, key, {.range = object::ByteRange{at, length}, .if_match = etag}, a, call_);
    if (!got || !*got || (*got)->bytes != length) return false;
    if (!writer_.base_.Assemble({at, at + length}, b, std::nullopt, call_)) return false;
    if (!std::ranges::equal(a, b)) return false;
  }
  return true;
}

}  // namespace millrace::vfs

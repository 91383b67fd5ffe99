#include "millrace/s3d/protocol/payload.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "millrace/base/hash/constant_time.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/http/server/request_head.h"

namespace millrace::s3d {
namespace {

constexpr std::size_t kMaxLine = 8 * kKiB;  // a chunk's line has some 100 bytes, a trailer's a few hundred
constexpr int kMaxTrailers = 16;            // clients send one checksum and one signature
/// The SHA-256 of no bytes.
constexpr std::string_view kEmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::unexpected<S3Error> Incomplete() {
  return Refuse("IncompleteBody",
                "You did not provide the number of bytes specified by the Content-Length HTTP header");
}
std::unexpected<S3Error> MalformedChunks(std::string_view what) {
  return Refuse("InvalidRequest", fmt::format("The aws-chunked body is malformed: {}", what));
}

}  // namespace

ChunkReader::ChunkReader(http::ServerRequest& request, const Authenticated* signing, bool trailers)
    : request_(request),
      signing_(signing),
      has_trailers_(trailers),
      input_(64 * kKiB),
      previous_signature_(signing ? signing->seed_signature : "") {}

Reply<bool> ChunkReader::Refill() {
  if (begin_ > 0) {
    std::memmove(input_.data(), input_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == input_.size()) return MalformedChunks("a line is too long");
  std::size_t got = MR_TRY(request_.ReadBody(input_.span().subspan(end_)));
  end_ += got;
  return got > 0;
}

Reply<std::string> ChunkReader::ReadLine() {
  for (;;) {
    std::string_view waiting = AsText(input_.span().subspan(begin_, end_ - begin_));
    std::size_t end = waiting.find("\r\n");
    if (end != std::string_view::npos) {
      std::string line(waiting.substr(0, end));
      begin_ += end + 2;
      return line;
    }
    if (waiting.size() > kMaxLine) return MalformedChunks("a line is too long");
    if (!MR_TRY(Refill())) return Incomplete();
  }
}

Reply<std::size_t> ChunkReader::Read(MutableByteSpan into) {
  if (done_) return std::size_t{0};
  if (left_ == 0) {
    MR_TRY(StartChunk());
    if (done_) return std::size_t{0};
  }
  std::size_t got = std::min<std::uint64_t>(into.size(), left_);
  if (begin_ < end_) {
    got = std::min(got, end_ - begin_);
    std::memcpy(into.data(), input_.data() + begin_, got);
    begin_ += got;
  } else {
    got = MR_TRY(request_.ReadBody(into.first(got)));
    if (got == 0) return Incomplete();
  }
  if (signing_) chunk_hash_.Update(into.first(got));
  left_ -= got;
  if (left_ == 0) MR_TRY(EndChunk());
  return got;
}

Reply<void> ChunkReader::StartChunk() {
  std::string line = MR_TRY(ReadLine());
  auto size = http::ParseChunkSize(line);
  if (!size) return MalformedChunks("no chunk size");
  left_ = *size;
  if (signing_) {
    constexpr std::string_view kField = ";chunk-signature=";
    std::size_t at = line.find(kField);
    if (at == std::string::npos) return MalformedChunks("a chunk without a signature");
    given_signature_ = line.substr(at + kField.size());
  }
  if (left_ > 0) return {};

  // The last chunk. Without trailers an empty line ends the body.
  if (signing_) MR_TRY(CheckSignature(std::string(kEmptyHash), given_signature_));
  if (has_trailers_) {
    MR_TRY(ReadTrailers());
  } else if (!MR_TRY(ReadLine()).empty()) {
    return MalformedChunks("bytes behind the last chunk");
  }
  if (begin_ < end_ || MR_TRY(Refill())) return MalformedChunks("bytes behind the end");
  done_ = true;
  return {};
}

Reply<void> ChunkReader::EndChunk() {
  if (!MR_TRY(ReadLine()).empty()) return MalformedChunks("a chunk is longer than its size");
  if (signing_) MR_TRY(CheckSignature(HexEncode(chunk_hash_.Finish()), given_signature_));
  return {};
}

Reply<void> ChunkReader::CheckSignature(std::string_view hash, std::string_view given) {
  std::string to_sign = fmt::format("AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{}\n{}\n{}", signing_->date, signing_->scope,
                                    previous_signature_, kEmptyHash, hash);
  std::string expected = HexEncode(HmacSha256(signing_->signing_key, AsBytes(to_sign)));
  if (!ConstantTimeEqual(expected, given)) {
    return Refuse("SignatureDoesNotMatch", "The signature of a chunk does not match its bytes");
  }
  previous_signature_ = std::move(expected);
  return {};
}

Reply<void> ChunkReader::ReadTrailers() {
  std::string canonical, signature;
  for (int count = 0;; ++count) {
    // Some clients end the body without the empty line.
    if (begin_ == end_ && !MR_TRY(Refill())) break;
    std::string line = MR_TRY(ReadLine());
    if (line.empty()) break;
    std::size_t colon = line.find(':');
    if (colon == std::string::npos || count == kMaxTrailers) return MalformedChunks("trailing fields");
    std::string name = ToLower(Trim(std::string_view(line).substr(0, colon)));
    std::string value(Trim(std::string_view(line).substr(colon + 1)));
    if (name == "x-amz-trailer-signature") {
      signature = value;
    } else {
      canonical += name + ":" + value + "\n";
      trailers_[name] = value;
    }
  }
  if (!signing_) return {};
  std::string to_sign = fmt::format("AWS4-HMAC-SHA256-TRAILER\n{}\n{}\n{}\n{}", signing_->date, signing_->scope,
                                    previous_signature_, HexEncode(Sha256(AsBytes(canonical))));
  if (!ConstantTimeEqual(HexEncode(HmacSha256(signing_->signing_key, AsBytes(to_sign))), signature)) {
    return Refuse("SignatureDoesNotMatch", "The signature of the trailing fields does not match");
  }
  return {};
}

BodyHashes::~BodyHashes() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void BodyHashes::StartThread() {
  thread_ = std::thread([this] { Run(); });
}

void BodyHashes::Take(ByteSpan bytes) {
  md5.Update(bytes);
  if (sha256) sha256->Update(bytes);
  if (checksum) checksum->Update(bytes);
}

void BodyHashes::Update(ByteSpan bytes) {
  if (!thread_.joinable()) return Take(bytes);
  MutexLock lock(mutex_);
  while (!pending_.empty()) changed_.Wait(mutex_);
  pending_ = bytes;
  changed_.NotifyAll();
}

void BodyHashes::Finish() {
  MutexLock lock(mutex_);
  while (!pending_.empty()) changed_.Wait(mutex_);
}

void BodyHashes::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (pending_.empty() && !ending_) changed_.Wait(mutex_);
    if (pending_.empty()) return;
    ByteSpan bytes = pending_;
    lock.Unlock();
    Take(bytes);
    lock.Lock();
    pending_ = {};
    changed_.NotifyAll();
  }
}

Reply<Payload> Payload::Open(http::ServerRequest& request, const Authenticated& who, std::uint64_t max_bytes,
                             std::optional<ChecksumKind> checksum) {
  Payload payload(request, max_bytes);
  MR_TRY(payload.ReadPromises(who, checksum));
  return payload;
}

Reply<void> Payload::ReadPromises(const Authenticated& who, std::optional<ChecksumKind> checksum) {
  const http::Headers& headers = request_->headers();
  const std::string& content = who.content_sha256;
  if (content.starts_with("STREAMING-")) {
    bool is_signed =
        content == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" || content == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
    bool trailers = content.ends_with("-TRAILER");
    if (!is_signed && content != "STREAMING-UNSIGNED-PAYLOAD-TRAILER") {
      return Refuse("NotImplemented", fmt::format("x-amz-content-sha256 {} is not understood here", content));
    }
    if (is_signed && who.anonymous) return Refuse("AccessDenied", "Signed chunks in a request without a signature");
    chunks_.emplace(*request_, is_signed ? &who : nullptr, trailers);
    std::string_view decoded = headers.Get("x-amz-decoded-content-length");
    std::uint64_t length = 0;
    auto [end, error] = std::from_chars(decoded.data(), decoded.data() + decoded.size(), length);
    if (decoded.empty() || error != std::errc() || end != decoded.data() + decoded.size()) {
      return Refuse("MissingContentLength", "You must provide the x-amz-decoded-content-length HTTP header.");
    }
    expected_ = length;
  } else {
    expected_ = request_->content_length();
    if (expected_ && *expected_ == 0 && !headers.Has("Content-Length")) {
      return Refuse("MissingContentLength", "You must provide the Content-Length HTTP header.");
    }
    if (content.size() == 64) {
      promised_sha256_ = content;
      hashes_->sha256.emplace(Hasher::Algorithm::kSha256);
    } else if (content != "UNSIGNED-PAYLOAD") {
      return Refuse("InvalidRequest", "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING- value or a SHA-256");
    }
  }
  if (expected_.value_or(0) > max_bytes_) {
    return Refuse("EntityTooLarge", "Your proposed upload exceeds the maximum allowed size");
  }
  if (std::string_view md5 = headers.Get("Content-MD5"); !md5.empty()) {
    auto bytes = Base64Decode(md5);
    if (!bytes || bytes->size() != 16) return Refuse("InvalidDigest", "The Content-MD5 you specified is not valid.");
    promised_md5_ = AsText(*bytes);
  }
  for (ChecksumKind kind : kChecksumKinds) {
    std::string_view value = headers.Get(ChecksumHeader(kind));
    bool announced = ParseChecksumHeader(Trim(headers.Get("x-amz-trailer"))) == kind;
    if (value.empty() && !announced) continue;
    if (!promised_checksum_.empty() || checksum_in_trailer_) {
      return Refuse("InvalidRequest", "Expecting a single x-amz-checksum- header");
    }
    auto bytes = Base64Decode(value);
    if (!announced && (!bytes || bytes->size() != ChecksumBytes(kind))) {
      return Refuse("InvalidRequest", fmt::format("Value for {} header is invalid.", ChecksumHeader(kind)));
    }
    promised_checksum_ = value;
    checksum_in_trailer_ = announced;
    checksum = kind;
  }
  if (checksum) hashes_->checksum.emplace(*checksum);
  return {};
}

Reply<std::size_t> Payload::ReadSome(MutableByteSpan into) {
  if (chunks_) return chunks_->Read(into);
  return MR_TRY(request_->ReadBody(into));
}

Reply<std::size_t> Payload::Read(MutableByteSpan into) {
  if (settled_) return std::size_t{0};
  std::size_t filled = 0;
  while (filled < into.size()) {
    std::size_t got = MR_TRY(ReadSome(into.subspan(filled)));
    if (got == 0) break;
    filled += got;
    received_ += got;
    if (received_ > expected_.value_or(max_bytes_)) {
      if (!expected_) return Refuse("EntityTooLarge", "Your proposed upload exceeds the maximum allowed size");
      return Incomplete();
    }
  }
  if (filled == 0) {
    MR_TRY(Settle());
  } else {
    hashes_->Update(into.first(filled));
  }
  return filled;
}

Reply<void> Payload::Settle() {
  settled_ = true;
  hashes_->Finish();
  if (expected_ && received_ != *expected_) return Incomplete();
  std::ranges::copy(hashes_->md5.Finish(), md5_.begin());
  if (!promised_md5_.empty() && promised_md5_ != AsText(md5_)) {
    return Refuse("BadDigest", "The Content-MD5 you specified did not match what we received.");
  }
  if (hashes_->sha256 && HexEncode(hashes_->sha256->Finish()) != promised_sha256_) {
    return Refuse("XAmzContentSHA256Mismatch",
                  "The provided 'x-amz-content-sha256' header does not match what was computed.");
  }
  if (!hashes_->checksum) return {};
  checksum_ =
      StoredChecksum{hashes_->checksum->kind(), ChecksumType::kFullObject, Base64Encode(hashes_->checksum->Finish())};
  if (checksum_in_trailer_) {
    auto found = chunks_ ? chunks_->trailers().find(std::string(ChecksumHeader(checksum_->kind)))
                         : decltype(chunks_->trailers().end()){};
    if (!chunks_ || found == chunks_->trailers().end()) {
      return Refuse("MalformedTrailerError", "The request announced a trailing checksum that did not come.");
    }
    promised_checksum_ = found->second;
  }
  if (!promised_checksum_.empty() && promised_checksum_ != checksum_->value) {
    return Refuse("BadDigest", fmt::format("The {} you specified did not match the calculated checksum.",
                                           ChecksumName(checksum_->kind)));
  }
  return {};
}

}  // namespace millrace::s3d

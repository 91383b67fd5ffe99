// The bytes of an upload: framing undone, everything that was promised about them held.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/server/server.h"
#include "millrace/s3d/protocol/checksum.h"
#include "millrace/s3d/protocol/s3_error.h"
#include "millrace/s3d/protocol/signature.h"

namespace millrace::s3d {

/// Undoes the aws-chunked coding ("size;chunk-signature=…" lines around pieces of the body, header fields behind it)
/// and checks the chunks' signatures. One thread. Bytes are handed out before the signature over them has been seen:
/// they may be kept only after Read has yielded 0.
class ChunkReader {
 public:
  /// `signing`: whose signatures the chunks carry; nullptr when they are not signed. `trailers`: fields follow the
  /// body.
  ChunkReader(http::ServerRequest& request, const Authenticated* signing, bool trailers);

  Reply<std::size_t> Read(MutableByteSpan into);
  /// Fields behind the body, names in lower case. Complete once Read has yielded 0.
  const std::map<std::string, std::string>& trailers() const { return trailers_; }

 private:
  Reply<std::string> ReadLine();
  Reply<void> StartChunk();
  Reply<void> EndChunk();
  Reply<void> ReadTrailers();
  Reply<bool> Refill();
  Reply<void> CheckSignature(std::string_view to_hash, std::string_view given);

  http::ServerRequest& request_;
  const Authenticated* signing_;
  const bool has_trailers_;
  Buffer input_;
  std::size_t begin_ = 0, end_ = 0;
  bool done_ = false;
  std::uint64_t left_ = 0;       ///< of the current chunk
  std::string given_signature_;  ///< of the current chunk
  std::string previous_signature_;
  Hasher chunk_hash_{Hasher::Algorithm::kSha256};
  std::map<std::string, std::string> trailers_;
};

/// What is computed over a body, at once or on a thread. One owner.
class BodyHashes {
 public:
  BodyHashes() = default;
  ~BodyHashes();
  BodyHashes(const BodyHashes&) = delete;
  BodyHashes& operator=(const BodyHashes&) = delete;

  void StartThread();
  /// Takes the bytes in, or, with a thread, sees to it that the ones before have been taken in and leaves it these.
  void Update(ByteSpan bytes) MR_EXCLUDES(mutex_);
  /// Returns when all has been taken in: then the hashers may be read.
  void Finish() MR_EXCLUDES(mutex_);

  Hasher md5{Hasher::Algorithm::kMd5};
  std::optional<Hasher> sha256;
  std::optional<ChecksumHasher> checksum;

 private:
  void Take(ByteSpan bytes);
  void Run() MR_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  ByteSpan pending_ MR_GUARDED_BY(mutex_);  ///< being hashed; empty: the thread is idle
  bool ending_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// One upload's body with all its promises: length, Content-MD5, SHA-256, x-amz-checksum-*. One thread.
class Payload {
 public:
  /// Fails when the headers contradict each other or promise what is not understood. `who` must outlive the payload.
  static Reply<Payload> Open(http::ServerRequest& request, const Authenticated& who, std::uint64_t max_bytes,
                             std::optional<ChecksumKind> checksum = std::nullopt);

  /// The next bytes, as many as fit unless the body ends; 0 once all have come and every promise has held.
  Reply<std::size_t> Read(MutableByteSpan into);
  /// From now on bytes are hashed on a thread of their own while the caller stores them and the next ones come: MD5
  /// takes longer than all the rest. What Read has handed out must then stay as it is until the next Read has returned,
  /// or until AwaitHashes has.
  void HashBeside() { hashes_->StartThread(); }
  void AwaitHashes() { hashes_->Finish(); }
  /// How many bytes will come, when the headers tell.
  std::optional<std::uint64_t> expected() const { return expected_; }

  // Known once Read has yielded 0:
  const Md5Digest& md5() const { return md5_; }
  /// The checksum asked for, or given by the client.
  const std::optional<StoredChecksum>& checksum() const { return checksum_; }

 private:
  Payload(http::ServerRequest& request, std::uint64_t max_bytes) : request_(&request), max_bytes_(max_bytes) {}
  Reply<void> ReadPromises(const Authenticated& who, std::optional<ChecksumKind> checksum);
  Reply<std::size_t> ReadSome(MutableByteSpan into);
  Reply<void> Settle();

  http::ServerRequest* request_;
  std::uint64_t max_bytes_;
  std::optional<ChunkReader> chunks_;
  std::optional<std::uint64_t> expected_;
  std::uint64_t received_ = 0;
  bool settled_ = false;
  std::unique_ptr<BodyHashes> hashes_ = std::make_unique<BodyHashes>();
  std::string promised_md5_, promised_sha256_;  ///< binary and hexadecimal
  std::string promised_checksum_;               ///< base64
  bool checksum_in_trailer_ = false;
  Md5Digest md5_{};
  std::optional<StoredChecksum> checksum_;
};

}  // namespace millrace::s3d

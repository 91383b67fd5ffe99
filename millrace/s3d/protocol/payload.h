// The body of an upload: removes its framing and verifies its length, checksums and signatures.
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

/// Decodes aws-chunked ("size;chunk-signature=…" lines around pieces of the body, header fields after it) and checks
/// the chunks' signatures. One thread. Read() returns bytes before it has seen their signature: keep them only after
/// Read() has returned 0.
class ChunkReader {
 public:
  /// `signing`: the identity that signed the chunks, or nullptr if they are not signed. `trailers`: header fields
  /// follow the body.
  ChunkReader(http::ServerRequest& request, const Authenticated* signing, bool trailers);

  Reply<std::size_t> Read(MutableByteSpan into);
  /// Returns the fields after the body, with names in lower case. Complete once Read() has returned 0.
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
  std::uint64_t left_ = 0;       ///< bytes of the current chunk that are still to come
  std::string given_signature_;  ///< the current chunk's
  std::string previous_signature_;
  Hasher chunk_hash_{Hasher::Algorithm::kSha256};
  std::map<std::string, std::string> trailers_;
};

/// The hashes of a body, computed by the caller or on a thread. One owner.
class BodyHashes {
 public:
  BodyHashes() = default;
  ~BodyHashes();
  BodyHashes(const BodyHashes&) = delete;
  BodyHashes& operator=(const BodyHashes&) = delete;

  /// From now on a thread hashes.
  void StartThread();
  /// Hashes the bytes. With a thread, waits until it has hashed the bytes before, and gives it these.
  void Update(ByteSpan bytes) MR_EXCLUDES(mutex_);
  /// Blocks until all bytes are hashed. The hashers may be read afterwards.
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

/// The body of an upload with everything that its headers promise: length, Content-MD5, SHA-256, x-amz-checksum-*. One
/// thread.
class Payload {
 public:
  /// Fails if the headers contradict each other or are not understood.
  /// REQUIRES: `who` outlives the payload.
  static Reply<Payload> Open(http::ServerRequest& request, const Authenticated& who, std::uint64_t max_bytes,
                             std::optional<ChecksumKind> checksum = std::nullopt);

  /// Reads the next bytes: into.size() of them unless the body ends. Returns 0 at the end, after all promises were
  /// verified.
  Reply<std::size_t> Read(MutableByteSpan into);
  /// From now on a thread hashes the bytes while the caller stores them and receives the next ones (MD5 takes longer
  /// than all the rest). Do not change bytes of a Read() until the next Read() or AwaitHashes() has returned.
  void HashBeside() { hashes_->StartThread(); }
  void AwaitHashes() { hashes_->Finish(); }
  /// Returns the body's length, if the headers have it.
  std::optional<std::uint64_t> expected() const { return expected_; }

  // Known once Read() has returned 0:
  const Md5Digest& md5() const { return md5_; }
  /// Returns the checksum that Open() asked for or the client gave.
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

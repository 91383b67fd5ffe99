// Learns from an endpoint's answers which optional parts of S3's protocol it takes: checksums in headers, checksums
// behind bodies, and the form of ETags in If-Match.
#pragma once

#include <atomic>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/http/client/request.h"

namespace millrace::object::s3 {

/// The knowledge of one endpoint. Thread-safe.
class Dialect {
 public:
  /// `trailers`: whether checksums may follow bodies at all. `checksums`: whether to send checksums from the start.
  Dialect(bool trailers, bool checksums);

  /// Learns from the answer to a request with these headers. `wrote`: the request was to write.
  void Learn(const http::Headers& sent, bool wrote, const http::Response& response);

  /// Returns whether a body's checksum may follow the body. True if the endpoint has a name that is known to understand
  /// the coding, and an upload's answer has repeated its checksum. An endpoint that only has the name might store the
  /// coding with the bytes.
  bool takes_trailers() const { return trailers_.load(std::memory_order_relaxed) == Trailers::kTaken; }
  /// Records that the endpoint has refused such a body, or does not say that it understood it.
  void ForgoTrailers() { trailers_.store(Trailers::kRefused, std::memory_order_relaxed); }

  /// Returns whether requests have S3's checksum headers.
  bool takes_checksums() const { return checksums_.load(std::memory_order_relaxed) != Answer::kNo; }
  /// Returns whether a refusal may be due to the checksum headers among these.
  bool MayRefuseChecksums(const http::Headers& sent) const;
  /// Records that the endpoint refuses requests because of these headers.
  void ForgoChecksums() { checksums_.store(Answer::kNo, std::memory_order_relaxed); }

  /// Returns whether If-Match has ETags without their quotes.
  bool bare_etags() const { return quoted_etags_.load(std::memory_order_relaxed) == Answer::kNo; }
  /// Returns whether a write whose If-Match has quotes has never succeeded.
  bool quotes_unproven() const { return quoted_etags_.load(std::memory_order_relaxed) == Answer::kUnknown; }
  /// Records that only an ETag without quotes matches.
  void ForgoQuotes() { quoted_etags_.store(Answer::kNo, std::memory_order_relaxed); }

 private:
  enum class Answer { kUnknown, kYes, kNo };
  enum class Trailers {
    kUnknown,
    kNamed,  ///< the endpoint's name promises that it takes them
    kTaken,
    kRefused,
  };
  void LearnTrailers(const http::Headers& sent, const http::Response& response);

  std::atomic<Trailers> trailers_;
  std::atomic<Answer> checksums_, quoted_etags_{Answer::kUnknown};
};

/// Replaces S3's checksum headers by Content-MD5, which all servers know, if there is a body. Reads the body.
/// Errors: those of `source`.
Status ReplaceChecksums(http::Headers& headers, ByteSpan body, http::BodySource* source);
/// Takes the quotes from the ETag in If-Match.
void UnquoteIfMatch(http::Headers& headers);

}  // namespace millrace::object::s3

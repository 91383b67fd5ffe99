// Behaves as servers, proxies and networks of the world do where they differ from S3. `--fault` orders an oddity by
// its name; tests of clients use them.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/server/server.h"
#include "millrace/s3d/operations/dispatch.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

enum class Oddity : unsigned char {
  kHeadWithoutLength,
  kChunked,
  kListUnordered,
  kListOutsidePrefix,
  kListSameToken,
  kListMarkers,
  kListWithoutETags,
  kWriteWithoutETag,
  kWeakETags,
  kWithoutChecksums,
  kRefuseChecksums,
  kQuotesNeverMatch,
  kIgnoreRange,
  kDeleteRefusesOne,
  kErrorsWithoutBody,
  kErrorIn200,
  kDropFolderMetadata,
  kDropHeaders,
  kClockAhead,
  kRegionMalformed,
  kRegionRedirect,
  kRedirect,
  kGzip,
  kGzipAlways,
  kDuplicateHeaders,
  kListDuplicates,
  kTrailersUnchecked,
  kTokenExpires,
  kDeleteAbsent404,
  kCount,  ///< not an oddity
};
using Oddities = std::bitset<static_cast<std::size_t>(Oddity::kCount)>;

/// A row of the table that --help, the documents and the tests show.
struct OddityRow {
  Oddity oddity;
  std::string_view name;    ///< as `--fault` has it
  std::string_view what;    ///< what the endpoint does
  std::string_view source;  ///< a public report of a server or proxy that does it
};
/// All oddities, in the order of the enumeration.
std::span<const OddityRow> OddityTable();
/// Returns the oddity of this name, if there is one.
std::optional<Oddity> FindOddity(std::string_view name);

/// The memory of an odd endpoint from request to request. Thread-safe.
class OddityMemory {
 public:
  /// Returns how often this was called with `what` before. Forgets all when it knows kMost texts.
  std::uint64_t Count(const std::string& what) MR_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kMost = 10'000;
  Mutex mutex_;
  std::map<std::string, std::uint64_t> counts_ MR_GUARDED_BY(mutex_);
};

/// Returns how far the clock of an endpoint with these oddities is ahead.
Duration ClockAhead(const Oddities& oddities);
/// Refuses a request as an endpoint with these oddities does before it checks the signature.
Reply<void> AdmitOddly(const Oddities& oddities, OddityMemory& memory, const http::ServerRequest& request);

/// One request to an odd endpoint. Borrows everything.
struct OddRequest {
  const Oddities& oddities;
  const Route& route;
  const QueryParameters& query;
  http::ServerRequest& request;
  http::ServerResponse& response;
};
/// Runs an operation on a request and a response that have been changed.
using RunOperation =
    std::function<Reply<void>(const Route&, const QueryParameters&, http::ServerRequest&, http::ServerResponse&)>;
/// Serves the request as an endpoint with these oddities does. The caller has checked the signature.
/// Errors: those of `run`, and those that an oddity makes.
Reply<void> ServeOddly(const OddRequest& odd, const RunOperation& run);
/// Returns whether the server works on objects before it answers in full: copies and completions.
bool IsServerWork(std::string_view operation);
/// Returns a response that sends what the oddities make of the answer to the request. Borrows its arguments.
std::unique_ptr<http::ServerResponse> MakeOdd(const Oddities& oddities, std::string_view operation,
                                              const http::ServerRequest& request, http::ServerResponse& response);

}  // namespace millrace::s3d

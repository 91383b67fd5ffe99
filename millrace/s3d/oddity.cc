#include "millrace/s3d/oddity.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/text.h"

namespace millrace::s3d {
namespace {

constexpr OddityRow kTable[] = {
    {Oddity::kHeadWithoutLength, "head-without-length", "answer HEAD without Content-Length", "rclone#8500"},
    {Oddity::kChunked, "chunked", "send objects without Content-Length", "async-aws#2077"},
    {Oddity::kListUnordered, "list-unordered", "list keys out of order, also across pages", "aws-cli#8470"},
    {Oddity::kListOutsidePrefix, "list-outside-prefix", "list all keys, whatever the prefix", "s3rver#180"},
    {Oddity::kListSameToken, "list-same-token", "give the first page and its token for ever", "runpod-python#505"},
    {Oddity::kListMarkers, "list-markers", "know only the first version of listings", "minio/mc#3067"},
    {Oddity::kListWithoutETags, "list-without-etags", "list objects without ETags", "s3s-fs 0.14"},
    {Oddity::kWriteWithoutETag, "write-without-etag", "answer writes and copies without an ETag",
     "ceph-qe-scripts#564"},
    {Oddity::kWeakETags, "weak-etags", "send the ETags of objects as weak ones (W/), as compressing proxies do",
     "gocd#2247"},
    {Oddity::kWithoutChecksums, "without-checksums", "answer without x-amz-checksum headers", "gofakes3 1.2"},
    {Oddity::kRefuseChecksums, "refuse-checksums", "refuse requests with x-amz-checksum headers", "icechunk#2109"},
    {Oddity::kQuotesNeverMatch, "quotes-never-match", "refuse If-Match of writes unless the ETag has no quotes",
     "slatedb#1818"},
    {Oddity::kIgnoreRange, "ignore-range", "send the whole object, whatever the range", "riak_cs#304"},
    {Oddity::kDeleteRefusesOne, "delete-refuses-one", "refuse the first key of each DeleteObjects",
     "S3's reference of DeleteObjects"},
    {Oddity::kErrorsWithoutBody, "errors-without-body", "send errors without a document", "aws-sdk-js#1492 (HEAD)"},
    {Oddity::kErrorIn200, "error-in-200", "answer a copy or a completion with 200 and an error",
     "S3's reference of CopyObject"},
    {Oddity::kDropFolderMetadata, "drop-folder-metadata", "keep no metadata of keys that end in /", "seaweedfs#3498"},
    {Oddity::kDropHeaders, "drop-headers", "keep no headers such as Cache-Control with objects", "gofakes3 1.2"},
    {Oddity::kClockAhead, "clock-ahead", "have a clock that is 20 minutes ahead", "minio/minio#12089"},
    {Oddity::kRegionMalformed, "region-malformed", "answer 400 and the region unless it is elsewhere-1",
     "s3fs-fuse#1186"},
    {Oddity::kRegionRedirect, "region-redirect", "answer 301 without Location unless the region is elsewhere-1",
     "aws-sdk-js-v3#5388"},
    {Oddity::kRedirect, "redirect", "redirect each request to itself with 307, every other time", "htslib#1760"},
    {Oddity::kGzip, "gzip", "compress objects unless Accept-Encoding says identity, as proxies do", "rclone#8137"},
    {Oddity::kGzipAlways, "gzip-always", "compress objects, whatever Accept-Encoding says", "rclone#6533"},
    {Oddity::kDuplicateHeaders, "duplicate-headers", "send ETag, Last-Modified and Content-Type twice", "fluxer#722"},
    {Oddity::kListDuplicates, "list-duplicates", "list each key twice", "rustfs#2439"},
    {Oddity::kTrailersUnchecked, "trailers-unchecked", "take checksums behind bodies without looking at them",
     "ministack#1497"},
    {Oddity::kTokenExpires, "token-expires", "let each session token expire after three requests", "s5cmd#678"},
    {Oddity::kDeleteAbsent404, "delete-absent-404", "answer 404 to the deletion of an absent key",
     "Google's reference of DELETE Object"},
};
static_assert(std::size(kTable) == static_cast<std::size_t>(Oddity::kCount));

constexpr Duration kAhead = std::chrono::minutes(20);  // S3 allows 15
constexpr std::string_view kElsewhere = "elsewhere-1";
constexpr std::uint64_t kTokenUses = 3;

bool Has(const Oddities& oddities, Oddity oddity) { return oddities.test(static_cast<std::size_t>(oddity)); }

bool IsListing(std::string_view operation) { return operation == "ListObjectsV2" || operation == "ListObjects"; }

/// Returns the elements of this name, with their tags.
std::vector<std::string> ElementsOf(std::string_view document, std::string_view name) {
  const std::string begin = fmt::format("<{}>", name), end = fmt::format("</{}>", name);
  std::vector<std::string> elements;
  for (std::size_t at = document.find(begin); at != document.npos;) {
    const std::size_t after = document.find(end, at) + end.size();
    elements.emplace_back(document.substr(at, after - at));
    at = document.find(begin, after);
  }
  return elements;
}
void RemoveElements(std::string& document, std::string_view name) {
  for (const std::string& element : ElementsOf(document, name)) document.erase(document.find(element), element.size());
}

void RepeatElements(std::string& document, std::string_view name) {
  const std::vector<std::string> elements = ElementsOf(document, name);
  if (elements.empty()) return;
  std::string twice;
  for (const std::string& element : elements) twice += element + element;
  const std::size_t first = document.find(elements.front());
  RemoveElements(document, name);
  document.insert(first, twice);
}

/// A request with other headers and another body.
class ChangedRequest final : public http::ServerRequest {
 public:
  explicit ChangedRequest(http::ServerRequest& inner) : inner_(inner), headers_(inner.headers()) {}
  http::Headers& mutable_headers() { return headers_; }
  void set_body(std::string body) {
    body_ = std::move(body);
    headers_.Set("Content-Length", std::to_string(body_->size()));
  }
  std::string_view method() const override { return inner_.method(); }
  std::string_view target() const override { return inner_.target(); }
  std::string_view path() const override { return inner_.path(); }
  std::string_view query() const override { return inner_.query(); }
  const http::Headers& headers() const override { return headers_; }
  std::string_view peer() const override { return inner_.peer(); }
  std::optional<std::uint64_t> content_length() const override {
    return body_ ? body_->size() : inner_.content_length();
  }
  std::stop_token stop() const override { return inner_.stop(); }
  Result<std::string> ReadAllBody(std::uint64_t max_bytes) override {
    return body_ ? *body_ : inner_.ReadAllBody(max_bytes);
  }
  Result<std::size_t> ReadBody(MutableByteSpan into) override {
    if (!body_) return inner_.ReadBody(into);
    const std::size_t count = body_->copy(reinterpret_cast<char*>(into.data()), into.size(), read_);
    read_ += count;
    return count;
  }

 private:
  http::ServerRequest& inner_;
  http::Headers headers_;
  std::optional<std::string> body_;
  std::size_t read_ = 0;  ///< of body_
};

/// Keeps a document instead of sending it.
class KeptResponse final : public http::ServerResponse {
 public:
  Status Send(int, http::Headers, ByteSpan body) override {
    body_ = AsText(body);
    return {};
  }
  Status Start(int, http::Headers, std::optional<std::uint64_t>) override { return {}; }
  Status Write(ByteSpan bytes) override {
    body_ += AsText(bytes);
    return {};
  }
  Status WriteFile(int, std::uint64_t, std::uint64_t) override { return {}; }
  Status Finish() override { return {}; }
  void Abort(bool) override {}
  bool started() const override { return false; }
  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

/// Makes a gzip stream.
class Gzip {
 public:
  Gzip() { deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() { deflateEnd(&stream_); }
  /// Returns the next bytes of the stream, all of them if this `ends` it.
  std::string Compress(ByteSpan bytes, bool ends) {
    std::string out;
    char piece[4096];
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(piece);
      stream_.avail_out = sizeof piece;
      deflate(&stream_, ends ? Z_FINISH : Z_NO_FLUSH);
      out.append(piece, sizeof piece - stream_.avail_out);
    } while (stream_.avail_out == 0);
    return out;
  }

 private:
  z_stream stream_{};
};

class OddResponse final : public http::ServerResponse {
 public:
  OddResponse(const Oddities& oddities, std::string_view operation, const http::ServerRequest& request,
              http::ServerResponse& inner)
      : oddities_(oddities),
        operation_(operation),
        may_compress_(operation == "GetObject" &&
                      (Has(oddities, Oddity::kGzipAlways) ||
                       (Has(oddities, Oddity::kGzip) && request.headers().Get("Accept-Encoding") != "identity"))),
        inner_(inner) {}

  Status Send(int status, http::Headers headers, ByteSpan body) override {
    std::string text(AsText(body));
    if (status >= 400 && Has(oddities_, Oddity::kErrorsWithoutBody)) text.clear();
    if (IsListing(operation_) && Has(oddities_, Oddity::kListWithoutETags)) RemoveElements(text, "ETag");
    if (IsListing(operation_) && Has(oddities_, Oddity::kListDuplicates)) RepeatElements(text, "Contents");
    if (IsServerWork(operation_) && operation_ != "UploadPartCopy" && Has(oddities_, Oddity::kWriteWithoutETag))
      RemoveElements(text, "ETag");
    if (status == 200 && IsServerWork(operation_) && Has(oddities_, Oddity::kErrorIn200))
      text = "<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>";
    Change(headers);
    if (operation_ == "HeadObject" && status == 200 && Has(oddities_, Oddity::kHeadWithoutLength)) {
      MR_TRY(inner_.Start(status, std::move(headers), std::nullopt));
      return inner_.Finish();
    }
    return inner_.Send(status, std::move(headers), AsBytes(text));
  }
  Status Start(int status, http::Headers headers, std::optional<std::uint64_t> length) override {
    Change(headers);
    if (may_compress_ && status == 200 && length.value_or(0) > 0) {
      gzip_.emplace();
      headers.Set("Content-Encoding", "gzip");
      return inner_.Start(status, std::move(headers), std::nullopt);
    }
    const bool hides = Has(oddities_, operation_ == "HeadObject" ? Oddity::kHeadWithoutLength : Oddity::kChunked);
    return inner_.Start(status, std::move(headers), hides ? std::nullopt : length);
  }
  Status Write(ByteSpan bytes) override { return gzip_ ? WriteCompressed(bytes, false) : inner_.Write(bytes); }
  Status WriteFile(int fd, std::uint64_t offset, std::uint64_t length) override {
    if (!gzip_) return inner_.WriteFile(fd, offset, length);
    char piece[4096];
    while (length > 0) {
      const ssize_t got = ::pread(fd, piece, std::min<std::uint64_t>(sizeof piece, length), static_cast<off_t>(offset));
      if (got <= 0) return Fail(Code::kIo, "reading a stored object");
      const auto some = static_cast<std::uint64_t>(got);
      MR_TRY(WriteCompressed(AsBytes(std::string_view(piece, some)), false));
      offset += some;
      length -= some;
    }
    return {};
  }
  Status Finish() override {
    if (gzip_) MR_TRY(WriteCompressed({}, true));
    return inner_.Finish();
  }
  void Abort(bool reset) override { inner_.Abort(reset); }
  bool started() const override { return inner_.started(); }

 private:
  Status WriteCompressed(ByteSpan bytes, bool ends) {
    const std::string compressed = gzip_->Compress(bytes, ends);
    return compressed.empty() ? Status() : inner_.Write(AsBytes(compressed));
  }
  void Change(http::Headers& headers) const {
    const std::string etag(headers.Get("ETag"));
    const bool reads = operation_ == "GetObject" || operation_ == "HeadObject";
    if (reads && !etag.empty() && Has(oddities_, Oddity::kWeakETags)) headers.Set("ETag", "W/" + etag);
    if (operation_ == "PutObject" && Has(oddities_, Oddity::kWriteWithoutETag)) headers.Remove("ETag");
    if (Has(oddities_, Oddity::kClockAhead)) headers.Set("Date", FormatHttpDate(SystemClock().Wall() + kAhead));
    if (Has(oddities_, Oddity::kDuplicateHeaders)) {
      for (const char* name : {"ETag", "Last-Modified", "Content-Type"}) {
        if (headers.Has(name)) headers.Add(name, std::string(headers.Get(name)));
      }
    }
    if (!Has(oddities_, Oddity::kWithoutChecksums)) return;
    for (const char* kind : {"crc32", "crc32c", "crc64nvme", "sha1", "sha256"})
      headers.Remove(fmt::format("x-amz-checksum-{}", kind));
  }

  const Oddities& oddities_;
  const std::string_view operation_;
  const bool may_compress_;
  std::optional<Gzip> gzip_;  ///< set while a compressed object is sent
  http::ServerResponse& inner_;
};

std::string_view Value(const QueryParameters& query, std::string_view name) {
  const auto found = std::ranges::find(query, name, [](const auto& field) { return std::string_view(field.first); });
  return found == query.end() ? std::string_view() : std::string_view(found->second);
}
void RemoveParameter(QueryParameters& query, std::string_view name) {
  std::erase_if(query, [&](const auto& field) { return field.first == name; });
}

/// Lists all that the query asks for, in an order of the names' hashes, in pages. A token is the number of entries
/// before its page.
Reply<void> ListUnordered(const OddRequest& odd, QueryParameters query, const RunOperation& run) {
  constexpr std::size_t kPage = 1000;
  const std::string token(Value(query, "continuation-token"));
  std::size_t first = 0;
  std::from_chars(token.data(), token.data() + token.size(), first);
  std::vector<std::string> entries;
  std::string document;
  RemoveParameter(query, "continuation-token");
  RemoveParameter(query, "max-keys");
  while (true) {
    KeptResponse kept;
    MR_TRY(run(odd.route, query, odd.request, kept));
    document = kept.body();
    for (const char* name : {"Contents", "CommonPrefixes"})
      std::ranges::move(ElementsOf(document, name), std::back_inserter(entries));
    const std::vector<std::string> next = ElementsOf(document, "NextContinuationToken");
    if (next.empty()) break;
    RemoveParameter(query, "continuation-token");
    const std::string_view text = next.front();
    query.emplace_back("continuation-token", text.substr(text.find('>') + 1, text.rfind('<') - text.find('>') - 1));
  }
  std::ranges::sort(entries, {}, [](const std::string& entry) { return std::hash<std::string>()(entry); });
  std::size_t page = kPage;
  const std::string most(Value(odd.query, "max-keys"));
  std::from_chars(most.data(), most.data() + most.size(), page);
  first = std::min(first, entries.size());
  const std::size_t end = std::min(entries.size(), first + std::min(page, kPage));
  std::string body = fmt::format("<ListBucketResult><IsTruncated>{}</IsTruncated>", end < entries.size());
  if (Value(query, "encoding-type") == "url") body += "<EncodingType>url</EncodingType>";
  if (end < entries.size()) body += fmt::format("<NextContinuationToken>{}</NextContinuationToken>", end);
  for (std::size_t i = first; i < end; ++i) body += entries[i];
  http::Headers headers;
  headers.Set("Content-Type", "application/xml");
  MR_TRY(odd.response.Send(200, std::move(headers), AsBytes(body + "</ListBucketResult>")));
  return {};
}

Reply<void> ListOddly(const OddRequest& odd, const RunOperation& run) {
  QueryParameters query = odd.query;
  if (Has(odd.oddities, Oddity::kListOutsidePrefix)) RemoveParameter(query, "prefix");
  if (Has(odd.oddities, Oddity::kListSameToken)) RemoveParameter(query, "continuation-token");
  if (Has(odd.oddities, Oddity::kListMarkers)) {
    for (const char* name : {"list-type", "start-after", "continuation-token"}) RemoveParameter(query, name);
    Route route = odd.route;
    route.run = ListObjects;
    return run(route, query, odd.request, odd.response);
  }
  if (Has(odd.oddities, Oddity::kListUnordered)) return ListUnordered(odd, std::move(query), run);
  return run(odd.route, query, odd.request, odd.response);
}

/// Deletes a key if it is there.
Reply<void> DeletePresent(const OddRequest& odd, const RunOperation& run) {
  Route head = odd.route;
  head.run = GetObject;
  KeptResponse kept;
  MR_TRY(run(head, odd.query, odd.request, kept));
  return run(odd.route, odd.query, odd.request, odd.response);
}

/// Deletes all keys of a DeleteObjects but the first.
Reply<void> DeleteOthers(const OddRequest& odd, const RunOperation& run) {
  std::string body = MR_TRY(odd.request.ReadAllBody(16 * kMiB));
  const std::vector<std::string> objects = ElementsOf(body, "Object");
  if (objects.empty()) return run(odd.route, odd.query, odd.request, odd.response);
  const std::string key = ElementsOf(objects.front(), "Key").front();
  std::string document;
  if (objects.size() > 1) {
    ChangedRequest others(odd.request);
    for (const char* name : {"content-md5", "x-amz-checksum-crc32c", "x-amz-content-sha256"})
      others.mutable_headers().Remove(name);
    others.set_body(body.erase(body.find(objects.front()), objects.front().size()));
    KeptResponse kept;
    MR_TRY(run(odd.route, odd.query, others, kept));
    for (const char* name : {"Deleted", "Error"}) {
      for (const std::string& element : ElementsOf(kept.body(), name)) document += element;
    }
  }
  http::Headers headers;
  headers.Set("Content-Type", "application/xml");
  MR_TRY(odd.response.Send(
      200, std::move(headers),
      AsBytes(fmt::format("<DeleteResult>{}<Error>{}<Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
                          "</DeleteResult>",
                          document, key))));
  return {};
}

}  // namespace

std::span<const OddityRow> OddityTable() { return kTable; }

std::optional<Oddity> FindOddity(std::string_view name) {
  for (const OddityRow& row : kTable) {
    if (row.name == name) return row.oddity;
  }
  return std::nullopt;
}

bool IsServerWork(std::string_view operation) {
  return operation == "CopyObject" || operation == "UploadPartCopy" || operation == "CompleteMultipartUpload";
}

std::unique_ptr<http::ServerResponse> MakeOdd(const Oddities& oddities, std::string_view operation,
                                              const http::ServerRequest& request, http::ServerResponse& response) {
  return std::make_unique<OddResponse>(oddities, operation, request, response);
}

std::uint64_t OddityMemory::Count(const std::string& what) {
  MutexLock lock(mutex_);
  if (counts_.size() >= kMost) counts_.clear();
  return counts_[what]++;
}

Duration ClockAhead(const Oddities& oddities) { return Has(oddities, Oddity::kClockAhead) ? kAhead : Duration(); }

Reply<void> AdmitOddly(const Oddities& oddities, OddityMemory& memory, const http::ServerRequest& request) {
  const std::string_view authorization = request.headers().Get("Authorization");
  const bool malformed = Has(oddities, Oddity::kRegionMalformed), redirects = Has(oddities, Oddity::kRegionRedirect);
  if ((malformed || redirects) && !authorization.empty() &&
      !authorization.contains(fmt::format("/{}/s3/aws4_request", kElsewhere))) {
    S3Error error(malformed ? "AuthorizationHeaderMalformed" : "PermanentRedirect",
                  malformed
                      ? fmt::format("The authorization header is malformed; expecting '{}'", kElsewhere)
                      : "The bucket you are attempting to access must be addressed using the specified endpoint.");
    if (malformed) {
      error.region = kElsewhere;
    } else {
      error.region_header = kElsewhere;
      error.endpoint = request.headers().Get("Host");
    }
    return std::unexpected(std::move(error));
  }
  if (Has(oddities, Oddity::kRedirect) &&
      memory.Count(fmt::format("{} {}", request.method(), request.target())) % 2 == 0) {
    S3Error error("TemporaryRedirect", "Please re-send this request to the specified temporary endpoint.");
    error.location = fmt::format("http://{}{}", request.headers().Get("Host"), request.target());
    return std::unexpected(std::move(error));
  }
  const std::string token(request.headers().Get("x-amz-security-token"));
  if (Has(oddities, Oddity::kTokenExpires) && memory.Count("token " + token) >= kTokenUses)
    return Refuse("ExpiredToken", "The provided token has expired.");
  return {};
}

Reply<void> ServeOddly(const OddRequest& odd, const RunOperation& run) {
  const std::string_view operation = odd.route.name;
  ChangedRequest changed(odd.request);
  http::Headers& headers = changed.mutable_headers();
  const bool writes = odd.request.method() == "PUT" || odd.request.method() == "POST";
  if (writes && Has(odd.oddities, Oddity::kRefuseChecksums)) {
    for (const auto& [name, value] : headers) {
      const std::string lower = ToLower(name);
      if (lower.starts_with("x-amz-checksum-") || lower == "x-amz-trailer")
        return Refuse("InvalidArgument", fmt::format("Unsupported header {} received for this API call.", name));
    }
  }
  if (writes && headers.Has("If-Match") && Has(odd.oddities, Oddity::kQuotesNeverMatch)) {
    const std::string etag(headers.Get("If-Match"));
    if (etag.starts_with('"'))
      return Refuse("PreconditionFailed", "At least one of the pre-conditions you specified did not hold");
    headers.Set("If-Match", fmt::format("\"{}\"", etag));
  }
  if (Has(odd.oddities, Oddity::kIgnoreRange)) headers.Remove("Range");
  if (writes && Has(odd.oddities, Oddity::kTrailersUnchecked)) headers.Remove("x-amz-trailer");
  if (writes && Has(odd.oddities, Oddity::kDropHeaders)) {
    for (const char* name :
         {"Cache-Control", "Content-Disposition", "Content-Language", "Expires", "x-amz-website-redirect-location"})
      headers.Remove(name);
  }
  if (writes && odd.request.path().ends_with('/') && Has(odd.oddities, Oddity::kDropFolderMetadata)) {
    std::vector<std::string> names;
    for (const auto& [name, value] : headers) {
      if (ToLower(name).starts_with("x-amz-meta-")) names.push_back(name);
    }
    for (const std::string& name : names) headers.Remove(name);
  }
  if (!odd.request.headers().Get("If-Match").empty() && Has(odd.oddities, Oddity::kWeakETags)) {
    const std::string etag(headers.Get("If-Match"));
    if (etag.starts_with("W/")) headers.Set("If-Match", etag.substr(2));
  }
  const OddRequest next{odd.oddities, odd.route, odd.query, changed, odd.response};
  if (operation == "ListObjectsV2") return ListOddly(next, run);
  if (operation == "DeleteObjects" && Has(odd.oddities, Oddity::kDeleteRefusesOne)) return DeleteOthers(next, run);
  if (operation == "DeleteObject" && Has(odd.oddities, Oddity::kDeleteAbsent404)) return DeletePresent(next, run);
  return run(odd.route, odd.query, changed, odd.response);
}

}  // namespace millrace::s3d

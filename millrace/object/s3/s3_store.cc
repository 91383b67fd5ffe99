#include "millrace/object/s3/s3_store.h"

#include <algorithm>
#include <charconv>

#include "millrace/base/text.h"
#include "millrace/object/rules.h"
#include "millrace/object/s3/batch_deletion.h"
#include "millrace/object/s3/object_body.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/object/s3/protocol/xml.h"
#include "millrace/xml/xml.h"

namespace millrace::object::s3 {
namespace {

Code CodeOf(const Outcome& outcome) { return outcome.response.error().code(); }

void SetVersion(const std::string& version, Operation& operation) {
  if (!version.empty()) operation.query.emplace_back("versionId", version);
}

/// The error of a Head of one version. The response to a HEAD has no message.
Error VersionError(const Outcome& outcome, const std::string& key, const std::string& version) {
  const Error& error = outcome.response.error();
  if (!outcome.answered || IsRetryable(error.code()) || error.code() == Code::kPermissionDenied) return error;
  return error.Context(
      fmt::format("looking for version {} of {}; the id may be wrong, or be that of a delete marker", version, key));
}

/// Whether the bucket exists but the key does not.
bool IsAbsent(const Outcome& outcome) {
  return CodeOf(outcome) == Code::kNotFound && outcome.s3_code != "NoSuchBucket";
}

const std::string& KeyOf(const ObjectInfo& object) { return object.key; }
const std::string& KeyOf(const VersionInfo& version) { return version.info.key; }

/// Leaves out of a page what a listing of `prefix` did not ask for. Returns whether there were names outside of the
/// prefix: some servers ignore it, or cut its last slash.
template <class T>
bool LeaveOutOthers(const std::string& prefix, const std::string& delimiter, std::vector<T>& objects,
                    std::vector<std::string>& common_prefixes) {
  auto is_outside = [&](const std::string& name) { return !name.starts_with(prefix); };
  const std::size_t outside = std::erase_if(objects, [&](const T& object) { return is_outside(KeyOf(object)); }) +
                              std::erase_if(common_prefixes, is_outside);
  std::erase_if(common_prefixes, [&](const std::string& folder) {
    return folder.size() <= prefix.size() || !folder.ends_with(delimiter);
  });
  return outside > 0;
}

Result<std::optional<GetResult>> InformationOnly(Result<std::optional<ObjectInfo>> found,
                                                 const std::optional<ByteRange>& range, std::size_t room) {
  std::optional<ObjectInfo> info = MR_TRY(std::move(found));
  if (!info) return std::nullopt;
  ByteRange clipped = MR_TRY(FitRange(range, info->size, room));
  if (clipped.length > 0) return Fail(Code::kUnavailable, "{} grew while it was being read", info->key);
  return GetResult{.info = *std::move(info)};
}

}  // namespace

void S3Store::Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) {
  HeadIfMatch({.key = std::move(key)}, std::move(call), std::move(done));
}

void S3Store::HeadVersion(std::string key, std::string version, Call call, Done<std::optional<ObjectInfo>> done) {
  HeadIfMatch({.key = std::move(key), .version = std::move(version)}, std::move(call), std::move(done));
}

void S3Store::HeadIfMatch(HeadTarget target, Call call, Done<std::optional<ObjectInfo>> done) {
  if (Status good = CheckKey(target.key); !good) return done(Fail(good.error()));
  SendHead(std::move(target), std::nullopt, std::move(call), std::move(done));
}

void S3Store::SendHead(HeadTarget target, std::optional<Error> reason, Call call,
                       Done<std::optional<ObjectInfo>> done) {
  Operation operation = bucket_.NewKeyedOperation("HeadObject", "HEAD", target.key);
  SetVersion(target.version, operation);
  operation.headers.Set("X-Amz-Checksum-Mode", "ENABLED");
  SetConditions(target.if_match, false, operation.headers);
  bucket_.RunThen(std::move(operation), call,
                  [this, reason = std::move(reason), target = std::move(target), call,
                   done = std::move(done)](Outcome outcome) mutable {
                    if (outcome.response) {
                      const http::Headers& headers = outcome.response->headers;
                      ObjectInfo info = InfoFromHeaders(std::move(target.key), headers);
                      if (ParseNumber(headers.Get("content-length"), info.size)) return done(std::move(info));
                      return AskForSize(std::move(info), std::move(target.version), std::move(call), std::move(done));
                    }
                    const Error& error = outcome.response.error();
                    if (!target.version.empty() && error.code() != Code::kNotFound) {
                      return done(Fail(VersionError(outcome, target.key, target.version)));
                    }
                    const bool refused =
                        error.code() == Code::kInvalidArgument || error.code() == Code::kPermissionDenied;
                    if (refused && !reason && outcome.answered) {
                      return AskForReason(std::move(target), error, std::move(call), std::move(done));
                    }
                    if (refused && reason) return done(Fail(*std::move(reason)));
                    if (error.code() != Code::kNotFound) return done(Fail(error));
                    // The 404 of a HEAD has no body that could distinguish a missing key from a missing bucket.
                    if (bucket_.seen()) return done(std::nullopt);
                    AskForBucket(std::move(call), std::move(done));
                  });
}

void S3Store::AskForReason(HeadTarget target, Error refusal, Call call, Done<std::optional<ObjectInfo>> done) {
  Operation operation = bucket_.NewOperation("ListObjectsV2", "GET");
  operation.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"max-keys", "1"}, {"prefix", target.key}};
  bucket_.RunThen(std::move(operation), call,
                  [this, target = std::move(target), refusal = std::move(refusal), call,
                   done = std::move(done)](Outcome outcome) mutable {
                    const bool denied = refusal.code() == Code::kPermissionDenied;
                    auto page =
                        outcome.response ? ParseListPage(outcome.response->body) : Fail(outcome.response.error());
                    auto has_key = [&](const ObjectInfo& object) { return object.key == target.key; };
                    if (denied && page && std::ranges::none_of(page->objects, has_key)) return done(std::nullopt);
                    Error reason = denied ? refusal
                                          : refusal.Context(
                                                "the object may be encrypted with a key of its owner's "
                                                "(--sse-c-key-file), or not with the one given");
                    // The right to list is another one: that it is lacking says nothing about the key.
                    if (!page && !outcome.s3_code.empty() && outcome.s3_code != "AccessDenied") reason = page.error();
                    SendHead(std::move(target), std::move(reason), std::move(call), std::move(done));
                  });
}

void S3Store::AskForSize(ObjectInfo info, std::string version, Call call, Done<std::optional<ObjectInfo>> done) {
  constexpr ByteRange kFirst{0, 1};
  Operation operation = bucket_.NewKeyedOperation("GetObject", "GET", info.key);
  SetVersion(version, operation);
  auto into = std::make_shared<std::byte>();
  operation.target.into = MutableByteSpan(into.get(), kFirst.length);
  SetRange(kFirst, operation.headers);
  operation.check = [kFirst](const http::Response& response) { return CheckRange(response, kFirst); };
  bucket_.RunThen(
      std::move(operation), std::move(call),
      [info = std::move(info), into, done = std::move(done)](Outcome outcome) mutable {
        if (outcome.s3_code == "InvalidRange") {  // there is no first byte
          info.size = 0;
          return done(std::move(info));
        }
        if (!outcome.response) {
          if (IsAbsent(outcome)) return done(std::nullopt);
          return done(Fail(outcome.response.error().Context("asking for the size, which HEAD did not tell")));
        }
        const http::Headers& headers = outcome.response->headers;
        if (xml::Unquote(headers.Get("etag")) != info.etag) {
          return done(Fail(Code::kUnavailable, "{} was replaced while it was looked at", info.key));
        }
        const auto range = ParseContentRange(headers.Get("content-range"));
        if (range) info.size = range->total;
        if (range || ParseNumber(headers.Get("content-length"), info.size)) return done(std::move(info));
        done(Fail(Code::kUnsupported,
                  "neither HEAD nor a Get tells the size of {}: the endpoint, or a proxy before it, leaves out "
                  "Content-Length and Content-Range",
                  info.key));
      });
}

template <class T>
void S3Store::EndDenied(std::string key, Error denied, Call call, Done<std::optional<T>> done) {
  List({.prefix = key, .max_keys = 1}, std::move(call),
       [key, denied = std::move(denied), done = std::move(done)](Result<ListPage> page) mutable {
         const bool absent =
             page && std::ranges::none_of(page->objects, [&](const ObjectInfo& object) { return object.key == key; });
         done(absent ? Result<std::optional<T>>(std::nullopt) : Fail(denied));
       });
}

void S3Store::HeadPart(std::string key, std::string etag, int number, Call call,
                       Done<std::optional<std::uint64_t>> done) {
  if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  Operation operation = bucket_.NewKeyedOperation("HeadObject", "HEAD", std::move(key));
  operation.query = {{"partNumber", std::to_string(number)}};
  SetConditions(etag, false, operation.headers);
  bucket_.RunOperation<std::optional<std::uint64_t>>(
      std::move(operation), std::move(call), std::move(done),
      [](Outcome outcome) -> Result<std::optional<std::uint64_t>> {
        if (!outcome.response) {  // the part does not exist, or the server does not know parts
          Code code = CodeOf(outcome);
          bool unknown = outcome.answered && code != Code::kPreconditionFailed && !IsRetryable(code);
          return unknown ? Result<std::optional<std::uint64_t>>(std::nullopt) : Fail(outcome.response.error());
        }
        const http::Headers& headers = outcome.response->headers;
        const auto range = ParseContentRange(headers.Get("content-range"));
        if (!range || !headers.Has("x-amz-mp-parts-count")) return std::nullopt;
        return range->last - range->first + 1;
      });
}

void S3Store::AskForBucket(Call call, Done<std::optional<ObjectInfo>> done) {
  // A response to HEAD has no message, so the bucket is listed.
  Operation operation = bucket_.NewOperation("ListObjectsV2", "GET");
  operation.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"max-keys", "1"}, {"prefix", ""}};
  bucket_.RunOperation<std::optional<ObjectInfo>>(
      std::move(operation), std::move(call), std::move(done),
      [bucket = bucket_.bucket()](Outcome outcome) -> Result<std::optional<ObjectInfo>> {
        // The permission to read objects does not imply one for the bucket.
        if (outcome.response || outcome.s3_code == "AccessDenied") return std::nullopt;
        if (CodeOf(outcome) != Code::kNotFound) return Fail(outcome.response.error());
        return Fail(Code::kNotFound,
                    "there is no bucket s3://{} at this endpoint; check the name and the "
                    "endpoint, or make it: millrace mb s3://{}",
                    bucket, bucket);
      });
}

void S3Store::Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
                  Done<std::optional<GetResult>> done) {
  const auto& range = options.range;
  const bool fits = range && range->length <= into.size();
  auto buffer = std::make_shared<BufferSink>(fits ? into.first(range->length) : into);
  Sink& sink = *buffer;
  RunGet({.key = std::move(key), .options = std::move(options), .room = into.size(), .buffer = std::move(buffer)},
         fits ? range->length : into.size(), sink, std::move(call), std::move(done));
}

void S3Store::GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
                    Done<std::optional<GetResult>> done) {
  RunGet({.key = std::move(key), .options = std::move(options)}, limit, sink, std::move(call), std::move(done));
}

void S3Store::RunGet(GetTarget target, std::uint64_t limit, Sink& sink, Call call,
                     Done<std::optional<GetResult>> done) {
  if (Status good = CheckKey(target.key); !good) return done(Fail(good.error()));
  const GetOptions& options = target.options;
  if (limit == 0 || (options.range && options.range->length == 0)) {
    return GetNothing(std::move(target.key), std::move(target.options), target.room, std::move(call), std::move(done));
  }
  Operation operation = bucket_.NewKeyedOperation("GetObject", "GET", target.key);
  SetVersion(options.version, operation);
  auto body = std::make_shared<ObjectBody>(sink, options, limit);
  operation.target.sink = body.get();
  operation.target.sink_limit = limit;
  if (options.range) SetRange(*options.range, operation.headers);
  if (!options.range) operation.headers.Set("X-Amz-Checksum-Mode", "ENABLED");
  SetConditions(options.if_match, false, operation.headers);
  operation.go_on = [body](Operation& next) { return body->GoOn(next); };
  operation.check = [body, buffer = target.buffer ? target.buffer->into()
                                                  : ByteSpan()](const http::Response& response) -> Status {
    MR_TRY(body->Check(response));
    if (buffer.empty() || !body->IsWhole(response)) return {};
    return VerifyChecksum(body->first_headers(), buffer.first(body->ResultOf({}, response).bytes));
  };
  bucket_.RunThen(
      std::move(operation), call,
      [this, target = std::move(target), limit, body, call, done = std::move(done)](Outcome outcome) mutable {
        GetOptions& options = target.options;
        if (outcome.response) {
          const http::Response& response = *outcome.response;
          const bool may_be_changed = body->MayBeCompressed(response);
          std::string encoding(response.headers.Get("content-encoding"));
          GetResult result = body->ResultOf(target.key, response);
          if (!may_be_changed) return done(std::move(result));
          return CheckEncoding(std::move(target), std::move(encoding), std::move(result), std::move(call),
                               std::move(done));
        }
        if (IsAbsent(outcome)) return done(std::nullopt);
        if (outcome.s3_code == "InvalidRange") {  // the range begins at or after the end
          return GetNothing(std::move(target.key), std::move(options), target.room, std::move(call), std::move(done));
        }
        if (CodeOf(outcome) == Code::kPermissionDenied && options.version.empty()) {
          return EndDenied(std::move(target.key), outcome.response.error(), std::move(call), std::move(done));
        }
        const bool fits = !target.buffer || (options.range && options.range->length <= limit);
        if (CodeOf(outcome) == Code::kCorrupt && !outcome.answered && !fits) {
          return done(Fail(outcome.response.error()
                               .Context("the bytes asked for do not fit the buffer they are to land in")
                               .WithCode(Code::kInvalidArgument)));
        }
        done(Fail(outcome.response.error()));
      });
}

void S3Store::CheckEncoding(GetTarget target, std::string encoding, GetResult result, Call call,
                            Done<std::optional<GetResult>> done) {
  std::string key = target.key;
  HeadIfMatch({std::move(target.key), std::move(target.options.version), std::move(target.options.if_match)},
              std::move(call),
              [key = std::move(key), encoding = std::move(encoding), result = std::move(result),
               done = std::move(done)](Result<std::optional<ObjectInfo>> stored) mutable {
                if (!stored) return done(Fail(stored.error()));
                if (*stored && (*stored)->attributes->content_encoding == encoding) return done(std::move(result));
                done(Fail(Code::kUnsupported,
                          "{}: a proxy before the endpoint compresses objects ({}); turn that off, or go around it",
                          key, encoding));
              });
}

/// A Get of no bytes, for the info only.
void S3Store::GetNothing(std::string key, GetOptions options, std::size_t room, Call call,
                         Done<std::optional<GetResult>> done) {
  std::string if_match = std::move(options.if_match), version = std::move(options.version);
  HeadIfMatch({std::move(key), std::move(version), std::move(if_match)}, std::move(call),
              [range = options.range, room, done = std::move(done)](Result<std::optional<ObjectInfo>> info) mutable {
                done(InformationOnly(std::move(info), range, room));
              });
}

void S3Store::ListEarly(ListRequest request, Call call, std::move_only_function<void(std::string)> next,
                        Done<ListPage> done) {
  if (request.max_keys < 1 || request.max_keys > 1000) {
    return done(Fail(Code::kInvalidArgument, "a page may have 1 to 1000 keys, not {}", request.max_keys));
  }
  Operation operation = bucket_.NewOperation("ListObjectsV2", "GET");
  // A policy may allow the prefix "" and nothing else: it is sent, too.
  operation.query = {
      {"encoding-type", "url"}, {"max-keys", std::to_string(request.max_keys)}, {"prefix", request.prefix}};
  auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) operation.query.emplace_back(name, value);
  };
  add("delimiter", request.delimiter);
  if (request.continuation.starts_with(kMarkerToken)) {
    add("marker", request.continuation.substr(kMarkerToken.size()));
  } else {
    add("list-type", "2");
    add("start-after", request.start_after);
    add("continuation-token", request.continuation);
  }
  bucket_.RunOperation<ListPage>(
      std::move(operation), std::move(call), std::move(done),
      [this, asked = std::move(request), next = std::move(next)](Outcome outcome) mutable -> Result<ListPage> {
        if (!outcome.response) return Fail(outcome.response.error());
        std::string token = next ? PeekContinuation(outcome.response->body) : "";
        if (!token.empty() && token != asked.continuation) next(std::move(token));
        ListPage page = MR_TRY(ParseListPage(outcome.response->body));
        if (!page.continuation.empty() && page.continuation == asked.continuation) {
          return Fail(Code::kCorrupt, "the listing of {} does not end: the endpoint repeats its continuation token",
                      Describe());
        }
        if (LeaveOutOthers(asked.prefix, asked.delimiter, page.objects, page.common_prefixes))
          bucket_.WarnOfOthers(asked.prefix);
        // Some servers list out of order. Within a page this is mended here; readers of several pages compare them.
        std::ranges::sort(page.objects, {}, &ObjectInfo::key);
        std::ranges::sort(page.common_prefixes);
        // Servers differ on common prefixes that are less than start-after but have keys after it.
        std::erase_if(page.common_prefixes, [&](const std::string& prefix) { return prefix <= asked.start_after; });
        std::erase_if(page.objects, [&](const ObjectInfo& object) { return object.key <= asked.start_after; });
        return page;
      });
}

void S3Store::ListVersions(VersionsRequest request, Call call, Done<VersionsPage> done) {
  Operation operation = bucket_.NewOperation("ListObjectVersions", "GET");
  operation.query = {{"versions", ""}, {"encoding-type", "url"}, {"prefix", request.prefix}};
  auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) operation.query.emplace_back(name, value);
  };
  add("delimiter", request.delimiter);
  add("key-marker", request.key_marker);
  add("version-id-marker", request.version_marker);
  bucket_.RunOperation<VersionsPage>(
      std::move(operation), std::move(call), std::move(done),
      [this, asked = std::move(request)](Outcome outcome) -> Result<VersionsPage> {
        if (!outcome.response) return Fail(outcome.response.error());
        VersionsPage page = MR_TRY(ParseVersionsPage(outcome.response->body));
        if (!page.next_key.empty() && page.next_key == asked.key_marker && page.next_version == asked.version_marker) {
          return Fail(Code::kCorrupt, "the list of versions of {} does not end", Describe());
        }
        if (LeaveOutOthers(asked.prefix, asked.delimiter, page.versions, page.common_prefixes))
          bucket_.WarnOfOthers(asked.prefix);
        return page;
      });
}

void S3Store::Put(std::string key, Payload body, PutOptions options, Call call, Done<PutResult> done) {
  if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  if (body.size() > limits().max_put) {
    return done(Fail(Code::kInvalidArgument, "{} bytes are too many for one request: use multipart", body.size()));
  }
  Operation operation = bucket_.NewKeyedOperation("PutObject", "PUT", std::move(key));
  operation.body = body;
  operation.headers.Set("X-Amz-Checksum-Crc32c", EncodeCrc32c(body));
  SendPut(std::move(operation), std::move(options), std::move(call), std::move(done));
}

void S3Store::PutFrom(std::string key, Source& body, PutOptions options, Call call, Done<PutResult> done) {
  if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  if (body.size() > limits().max_put) {
    return done(Fail(Code::kInvalidArgument, "{} bytes are too many for one request: use multipart", body.size()));
  }
  Operation operation = bucket_.NewKeyedOperation("PutObject", "PUT", key);
  // Content-Encoding would then have two codings, which servers treat differently. A conditional Put cannot be sent
  // again after it took effect.
  const bool may_trail =
      options.attributes.content_encoding.empty() && !options.if_none_match && options.if_match.empty();
  auto attached = bucket_.AttachBody(body, may_trail, operation);
  if (!attached) return done(Fail(attached.error()));
  SendPut(std::move(operation), options, call,
          [this, key = std::move(key), &body, options, call, sent = *std::move(attached),
           done = std::move(done)](Result<PutResult> put) mutable {
            if (put || !sent.Refused(put.error())) return done(std::move(put));
            bucket_.dispatcher().dialect().ForgoTrailers();
            PutFrom(std::move(key), body, std::move(options), std::move(call), std::move(done));
          });
}

void S3Store::SendPut(Operation operation, PutOptions options, Call call, Done<PutResult> done) {
  SetConditions(options.if_match, options.if_none_match, operation.headers);
  SetMetadata(options.content_type, options.metadata, operation.headers);
  SetAttributes(options.attributes, bucket_.dispatcher().settings().new_objects, operation.headers);
  bool conditional = options.if_none_match || !options.if_match.empty();
  std::string key = operation.key;
  bucket_.RunThen(std::move(operation), call,
                  [this, key = std::move(key), conditional, call, done = std::move(done)](Outcome outcome) mutable {
                    if (!outcome.response) return done(Fail(WriteError(outcome, conditional)));
                    EndWrite(*this, std::move(key), xml::Unquote(outcome.response->headers.Get("etag")), call,
                             std::move(done));
                  });
}

void S3Store::Delete(std::string key, Call call, Done<void> done) {
  if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  bucket_.RunOperation<void>(bucket_.NewOperation("DeleteObject", "DELETE", std::move(key)), std::move(call),
                             std::move(done), [](Outcome outcome) -> Status {
                               if (outcome.response || IsAbsent(outcome)) return {};
                               return Fail(outcome.response.error());
                             });
}

void S3Store::DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) {
  std::vector<VersionName> names;
  names.reserve(keys.size());
  for (std::string& key : keys) names.push_back({.key = std::move(key), .id = ""});
  DeleteInBatches(bucket_, std::move(names), std::move(call), std::move(done));
}

void S3Store::DeleteVersions(std::vector<VersionName> versions, Call call, Done<std::vector<DeleteFailure>> done) {
  DeleteInBatches(bucket_, std::move(versions), std::move(call), std::move(done));
}

void S3Store::Restore(std::string key, RestoreOptions options, Call call, Done<bool> done) {
  if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  Operation operation = bucket_.NewOperation("RestoreObject", "POST", std::move(key));
  operation.query = {{"restore", ""}};
  operation.own_body = RestoreDocument(options);
  operation.headers.Set("X-Amz-Checksum-Crc32c", EncodeCrc32c(AsBytes(operation.own_body)));
  operation.headers.Set("Content-Type", "application/xml");
  bucket_.RunOperation<bool>(std::move(operation), std::move(call), std::move(done),
                             [](Outcome outcome) -> Result<bool> {
                               if (outcome.response) return true;
                               if (outcome.s3_code == "RestoreAlreadyInProgress") return false;
                               return Fail(outcome.response.error());
                             });
}

void S3Store::Copy(std::string source, std::string destination, CopyOptions options, Call call, Done<PutResult> done) {
  for (const std::string* key : {&source, &destination}) {
    if (Status good = CheckKey(*key); !good) return done(Fail(good.error()));
  }
  Operation operation = bucket_.NewKeyedOperation("CopyObject", "PUT", std::move(destination));
  operation.error_may_follow_200 = true;
  bucket_.SetCopySource(source, options, operation.headers);
  SetConditions("", options.if_none_match, operation.headers);
  if (options.metadata) {
    operation.headers.Set("X-Amz-Metadata-Directive", "REPLACE");
    SetMetadata(options.content_type, *options.metadata, operation.headers);
  }
  if (!options.attributes.tagging.empty()) operation.headers.Set("X-Amz-Tagging-Directive", "REPLACE");
  SetAttributes(options.attributes, bucket_.dispatcher().settings().new_objects, operation.headers);
  std::string key = operation.key;
  bucket_.RunThen(std::move(operation), call,
                  [this, key = std::move(key), conditional = options.if_none_match, call,
                   done = std::move(done)](Outcome outcome) mutable {
                    if (!outcome.response) return done(Fail(WriteError(outcome, conditional)));
                    auto written = ParseWritten(outcome.response->body);
                    if (!written) return done(Fail(written.error()));
                    EndWrite(*this, std::move(key), std::move(written->etag), call, std::move(done));
                  });
}

Result<std::string> S3Store::Presign(std::string_view method, std::string_view key, Duration valid_for) {
  MR_TRY(CheckKey(key));
  return bucket_.dispatcher().Presign(method, bucket_.bucket(), key, valid_for);
}

std::shared_ptr<Store> NewStore(std::shared_ptr<Endpoint::Session> session, std::string bucket) {
  return std::make_shared<S3Store>(std::move(session), std::move(bucket));
}

}  // namespace millrace::object::s3

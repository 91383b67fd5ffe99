#include "millrace/object/read_store.h"

#include "millrace/base/result.h"

namespace millrace::object {

void ReadStore::GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
                      Done<std::optional<GetResult>> done) {
  std::uint64_t offset = options.range ? options.range->offset : 0;
  auto buffer = std::make_shared<Buffer>(limit);
  MutableByteSpan into = buffer->span();
  Get(std::move(key), std::move(options), into, std::move(call),
      [buffer, offset, &sink, done = std::move(done)](Result<std::optional<GetResult>> got) mutable {
        if (got && *got && (*got)->bytes > 0) {
          Status taken = sink.Take(offset, buffer->span().first((*got)->bytes));
          if (!taken) got = Fail(taken.error());
        }
        done(std::move(got));
      });
}

void ReadStore::HeadPart(std::string, std::string, int, Call, Done<std::optional<std::uint64_t>> done) {
  done(std::nullopt);
}

void ReadStore::HeadVersion(std::string, std::string, Call, Done<std::optional<ObjectInfo>> done) {
  done(Fail(Code::kUnsupported, "{} keeps no versions", Describe()));
}

void ReadStore::ListVersions(VersionsRequest, Call, Done<VersionsPage> done) {
  done(Fail(Code::kUnsupported, "{} keeps no versions", Describe()));
}

}  // namespace millrace::object

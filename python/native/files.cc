#include <pybind11/stl.h>

#include <optional>

#include "millrace/object/blocking.h"
#include "millrace/transfer/stream/multipart_writer.h"
#include "millrace/transfer/stream/ranged_reader.h"
#include "python/native/module.h"

namespace millrace::python {
namespace {

/// The size of a part. Random reads of at most this size are one request. Sequential reads are fetched ahead in parts.
/// 8 MiB is a guess.
constexpr std::uint64_t kPartBytes = 8 * kMiB;

py::dict InfoDict(const object::ObjectInfo& info, const std::string& key) {
  py::dict dict;
  dict["key"] = key;
  dict["size"] = info.size;
  dict["etag"] = info.etag;
  dict["modified"] = std::chrono::duration<double>(info.modified.time_since_epoch()).count();
  dict["content_type"] = info.content_type;
  dict["metadata"] = info.metadata;
  return dict;
}

/// Reads one version of an object at any offset. One thread at a time. Fetches ahead from the second read on that
/// begins where the read before ended.
class ObjectReader {
 public:
  ObjectReader(std::shared_ptr<Session> session, object::Location at, object::ObjectInfo info)
      : session_(std::move(session)), at_(std::move(at)), info_(std::move(info)) {}

  const object::ObjectInfo& info() const { return info_; }

  Result<std::size_t> Read(std::uint64_t offset, MutableByteSpan into, object::Call call) {
    if (offset >= info_.size || into.empty()) return 0;
    into = into.first(std::min<std::uint64_t>(into.size(), info_.size - offset));
    bool follows = offset == next_;
    if (!follows) stream_.reset();
    if (!stream_ && follows && reads_in_order_++ > 0) {
      stream_.emplace(*at_.store, session_->budget, info_,
                      transfer::RangedReader::Options{.range = object::ByteRange{offset, info_.size - offset}});
      piece_ = {};
    }
    if (!follows) reads_in_order_ = 0;
    if (stream_) {
      MR_TRY(ReadStream(into, call));
    } else {
      MR_TRY(transfer::ReadInto(*at_.store, info_, offset, into, 8, kPartBytes, std::move(call)));
    }
    next_ = offset + into.size();
    return into.size();
  }

 private:
  Status ReadStream(MutableByteSpan into, const object::Call& call) {
    while (!into.empty()) {
      if (piece_.empty()) piece_ = MR_TRY(stream_->Next(call));
      if (piece_.empty()) return Fail(Code::kStale, "{} ended early", info_.key);
      std::size_t count = std::min(piece_.size(), into.size());
      std::memcpy(into.data(), piece_.data(), count);
      piece_ = piece_.subspan(count);
      into = into.subspan(count);
    }
    return {};
  }

  const std::shared_ptr<Session> session_;
  const object::Location at_;
  const object::ObjectInfo info_;
  std::uint64_t next_ = 0;
  int reads_in_order_ = 0;
  std::optional<transfer::RangedReader> stream_;
  ByteSpan piece_;
};
using ObjectReaderHandle = ProcessBound<ObjectReader>;

/// Writes an object front to back. The object appears when Finish returns.
class ObjectWriter {
 public:
  ObjectWriter(std::shared_ptr<Session> session, object::Location at, bool create)
      : session_(std::move(session)),
        at_(std::move(at)),
        writer_(*at_.store, session_->budget, at_.key, {.part_bytes = kPartBytes, .put = {.if_none_match = create}}) {}

  transfer::MultipartWriter& operator*() { return writer_; }

 private:
  const std::shared_ptr<Session> session_;
  const object::Location at_;
  transfer::MultipartWriter writer_;
};
using ObjectWriterHandle = ProcessBound<ObjectWriter>;

object::Location Locate(const SessionHandle& session, const std::string& url) {
  return Unwrap(object::Locate(*session->connection, url));
}

object::Location LocateObject(const SessionHandle& session, const std::string& url) {
  object::Location at = Locate(session, url);
  if (at.key.empty() || at.key.ends_with('/')) Unwrap<void>(Fail(Code::kInvalidArgument, "{} names no object", url));
  return at;
}

std::optional<py::dict> Head(const SessionHandle& session, const std::string& url) {
  object::Location at = LocateObject(session, url);
  auto info = Interruptible<std::optional<object::ObjectInfo>>(
      [&](std::stop_token stop) { return object::Head(*at.store, at.key, {.stop = std::move(stop)}); });
  if (!info) return std::nullopt;
  return InfoDict(*info, info->key);
}

ObjectReaderHandle OpenObjectReader(const SessionHandle& session, const std::string& url) {
  object::Location at = LocateObject(session, url);
  auto info = Interruptible<std::optional<object::ObjectInfo>>(
      [&](std::stop_token stop) { return object::Head(*at.store, at.key, {.stop = std::move(stop)}); });
  if (!info) throw Raised{Error(Code::kNotFound, fmt::format("no object {}", url))};
  return ObjectReaderHandle(std::make_shared<ObjectReader>(session.shared(), std::move(at), *std::move(info)));
}

std::size_t ReadInto(const ObjectReaderHandle& self, std::uint64_t offset, const py::buffer& into) {
  py::buffer_info buffer = into.request(true);
  MutableByteSpan span(static_cast<std::byte*>(buffer.ptr), static_cast<std::size_t>(buffer.size * buffer.itemsize));
  ObjectReader& reader = *self;
  return Interruptible<std::size_t>(
      [&](std::stop_token stop) { return reader.Read(offset, span, {.stop = std::move(stop)}); });
}

ObjectWriterHandle OpenObjectWriter(const SessionHandle& session, const std::string& url, bool create) {
  return ObjectWriterHandle(std::make_shared<ObjectWriter>(session.shared(), LocateObject(session, url), create));
}

std::size_t Write(const ObjectWriterHandle& self, const py::buffer& bytes) {
  py::buffer_info buffer = bytes.request();
  ByteSpan span(static_cast<const std::byte*>(buffer.ptr), static_cast<std::size_t>(buffer.size * buffer.itemsize));
  transfer::MultipartWriter& writer = **self;
  Interruptible<void>([&](std::stop_token stop) { return writer.Write(span, {.stop = std::move(stop)}); });
  return span.size();
}

py::str Finish(const ObjectWriterHandle& self) {
  transfer::MultipartWriter& writer = **self;
  auto finished = Interruptible<transfer::MultipartWriter::Finished>(
      [&](std::stop_token stop) { return writer.Finish({.stop = std::move(stop)}); });
  return finished.etag;
}

/// Returns (infos, folders): all objects below the URL and, with a delimiter, all folders.
py::tuple ListObjects(const SessionHandle& session, const std::string& url, bool deep) {
  object::Location at = Locate(session, url);
  std::vector<object::ObjectInfo> objects;
  std::vector<std::string> folders;
  Interruptible<void>([&](std::stop_token stop) {
    return object::ListAll(*at.store, {.prefix = at.key, .delimiter = deep ? "" : "/"},
                           [&](const object::ListPage& page) {
                             objects.insert(objects.end(), page.objects.begin(), page.objects.end());
                             folders.insert(folders.end(), page.common_prefixes.begin(), page.common_prefixes.end());
                             return true;
                           },
                           {.stop = std::move(stop)});
  });
  py::list infos;
  for (const object::ObjectInfo& info : objects) infos.append(InfoDict(info, info.key));
  return py::make_tuple(infos, folders);
}

std::vector<std::string> Buckets(const SessionHandle& session) {
  auto buckets = Interruptible<std::vector<object::Service::Bucket>>(
      [&](std::stop_token stop) -> Result<std::vector<object::Service::Bucket>> {
        return MR_TRY(session->connection->OpenService())->ListBuckets({.stop = std::move(stop)});
      });
  std::vector<std::string> names;
  for (const auto& bucket : buckets) names.push_back(bucket.name);
  return names;
}

/// Deletes objects. REQUIRES: all are in the bucket of the first URL.
void Delete(const SessionHandle& session, const std::vector<std::string>& urls) {
  if (urls.empty()) return;
  std::vector<std::string> keys;
  for (const std::string& url : urls) keys.push_back(LocateObject(session, url).key);
  object::Location at = Locate(session, urls.front());
  auto failures = Interruptible<std::vector<object::DeleteFailure>>(
      [&](std::stop_token stop) { return object::DeleteMany(*at.store, keys, {.stop = std::move(stop)}); });
  if (!failures.empty()) throw Raised{failures.front().error.Context("deleting " + failures.front().key)};
}

void Copy(const SessionHandle& session, const std::string& from, const std::string& to) {
  object::Location source = LocateObject(session, from), destination = LocateObject(session, to);
  std::string bucket = Unwrap(object::ParseUrl(from)).bucket;
  Interruptible<object::PutResult>([&](std::stop_token stop) {
    return object::Copy(*destination.store, source.key, destination.key, {.source_bucket = bucket},
                        {.stop = std::move(stop)});
  });
}

}  // namespace

void AddFiles(py::module_& module) {
  py::class_<ObjectReaderHandle>(module, "Reader")
      .def(py::init(&OpenObjectReader), py::arg("session"), py::arg("url"))
      .def("read_into", &ReadInto, py::arg("offset"), py::arg("into"))
      .def_property_readonly("size", [](const ObjectReaderHandle& self) { return self->info().size; })
      .def_property_readonly("etag", [](const ObjectReaderHandle& self) { return self->info().etag; });
  py::class_<ObjectWriterHandle>(module, "Writer")
      .def(py::init(&OpenObjectWriter), py::arg("session"), py::arg("url"), py::arg("create"))
      .def("write", &Write, py::arg("bytes"))
      .def("finish", &Finish)
      .def("abort", [](const ObjectWriterHandle& self) {
        transfer::MultipartWriter& writer = **self;
        const InterpreterUnlocked release;
        writer.Abort();
      });
  module.def("head", &Head, py::arg("session"), py::arg("url"));
  module.def("list", &ListObjects, py::arg("session"), py::arg("url"), py::arg("deep"));
  module.def("buckets", &Buckets, py::arg("session"));
  module.def("delete", &Delete, py::arg("session"), py::arg("urls"));
  module.def("copy", &Copy, py::arg("session"), py::arg("source"), py::arg("destination"));
}

}  // namespace millrace::python

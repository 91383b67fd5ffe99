#include <pybind11/stl.h>

#include "millrace/data/documents/document_reader.h"
#include "python/native/module.h"

namespace millrace::python {
namespace {

/// A reader and the objects that must outlive it.
class Documents {
 public:
  static Result<std::shared_ptr<Documents>> Open(std::shared_ptr<Session> session,
                                                 const std::vector<data::DataSource>& sources, const std::string& form,
                                                 std::stop_token stop) {
    auto record_template = MR_TRY(data::RecordTemplate::Parse(form));
    auto made = std::shared_ptr<Documents>(new Documents(std::move(session), std::move(record_template)));
    made->reader_.emplace(MR_TRY(
        data::DocumentReader::Open(*made->session_->connection, sources, made->template_, {.stop = std::move(stop)})));
    return made;
  }

  /// Returns up to `count` documents, valid until the next call. None only at the end.
  Result<std::span<const std::string_view>> Next(std::size_t count) { return reader_->NextSome(count); }
  bool ready() const { return reader_->ready(); }

  std::uint64_t broken() const { return reader_->broken(); }

 private:
  Documents(std::shared_ptr<Session> session, data::RecordTemplate form)
      : session_(std::move(session)), template_(std::move(form)) {}

  const std::shared_ptr<Session> session_;
  const data::RecordTemplate template_;
  std::optional<data::DocumentReader> reader_;
};
/// The reader's thread reads ahead between calls, so its stop source outlives each call.
struct OpenDocuments {
  std::stop_source stop;
  std::shared_ptr<Documents> documents;
};
using DocumentsHandle = ProcessBound<OpenDocuments>;

DocumentsHandle MakeDocuments(const SessionHandle& session, const std::vector<SourceTuple>& sources,
                              const std::string& form) {
  std::vector<data::DataSource> wanted;
  for (const auto& [url, weight, format, split] : sources) wanted.push_back({url, weight, format, split});
  auto open = std::make_shared<OpenDocuments>();
  std::shared_ptr<Session> shared = session.shared();
  open->documents = Interruptible<std::shared_ptr<Documents>>([&](std::stop_token interrupted) {
    std::stop_callback relay(std::move(interrupted), [&] { open->stop.request_stop(); });
    return Documents::Open(shared, wanted, form, open->stop.get_token());
  });
  return DocumentsHandle(std::move(open));
}

py::list NextDocuments(const DocumentsHandle& self, std::size_t count) {
  OpenDocuments& open = *self;
  using Some = std::span<const std::string_view>;
  auto next = [&] { return open.documents->Next(count); };
  // If documents are ready, keeps the interpreter's lock, since the call does not wait.
  Some some = open.documents->ready() ? Unwrap(next()) : Interruptible<Some>([&](std::stop_token interrupted) {
    std::stop_callback relay(std::move(interrupted), [&] { open.stop.request_stop(); });
    return next();
  });
  py::list list(some.size());
  for (std::size_t i = 0; i < some.size(); ++i) {
    PyObject* text = PyUnicode_DecodeUTF8(some[i].data(), static_cast<Py_ssize_t>(some[i].size()), nullptr);
    if (text == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), text);
  }
  return list;
}

}  // namespace

void AddDocuments(py::module_& module) {
  py::class_<DocumentsHandle>(module, "Documents")
      .def(py::init(&MakeDocuments), py::arg("session"), py::arg("sources"), py::arg("template"))
      .def("next", &NextDocuments, py::arg("count"))
      .def_property_readonly("broken", [](const DocumentsHandle& self) { return self->documents->broken(); });
}

}  // namespace millrace::python

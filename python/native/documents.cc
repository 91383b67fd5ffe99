#include <pybind11/stl.h>

#include "millrace/data/document_reader.h"
#include "python/native/module.h"

namespace millrace::python {
namespace {

/// A reader, and what must outlive it.
class Documents {
 public:
  static Result<std::shared_ptr<Documents>> Open(std::shared_ptr<Session> session,
                                                 const std::vector<data::Source>& sources, const std::string& form,
                                                 std::stop_token stop) {
    auto made =
        std::shared_ptr<Documents>(new Documents(std::move(session), MR_TRY(data::RecordTemplate::Parse(form))));
    made->reader_.emplace(MR_TRY(
        data::DocumentReader::Open(*made->session_->connection, sources, made->template_, {.stop = std::move(stop)})));
    return made;
  }

  /// Up to `count` documents; fewer only at the end.
  Result<std::vector<std::string>> Next(std::size_t count) {
    std::vector<std::string> some;
    for (std::string document; some.size() < count && MR_TRY(reader_->Next(document));) {
      some.push_back(std::move(document));
    }
    return some;
  }

  std::uint64_t broken() const { return reader_->broken(); }

 private:
  Documents(std::shared_ptr<Session> session, data::RecordTemplate form)
      : session_(std::move(session)), template_(std::move(form)) {}

  const std::shared_ptr<Session> session_;
  const data::RecordTemplate template_;
  std::optional<data::DocumentReader> reader_;
};
/// The reader's own thread reads ahead between calls: it stops by a source that outlives each of them.
struct OpenDocuments {
  std::stop_source stop;
  std::shared_ptr<Documents> documents;
};
using DocumentsHandle = ProcessBound<OpenDocuments>;

DocumentsHandle Open(const SessionHandle& session, const std::vector<SourceTuple>& sources, const std::string& form) {
  std::vector<data::Source> wanted;
  for (const auto& [url, weight, format] : sources) wanted.push_back({url, weight, format});
  auto open = std::make_shared<OpenDocuments>();
  std::shared_ptr<Session> shared = session.shared();
  open->documents = Interruptible<std::shared_ptr<Documents>>([&](std::stop_token interrupted) {
    std::stop_callback relay(std::move(interrupted), [&] { open->stop.request_stop(); });
    return Documents::Open(shared, wanted, form, open->stop.get_token());
  });
  return DocumentsHandle(std::move(open));
}

py::list Next(const DocumentsHandle& self, std::size_t count) {
  OpenDocuments& open = *self;
  auto some = Interruptible<std::vector<std::string>>([&](std::stop_token interrupted) {
    std::stop_callback relay(std::move(interrupted), [&] { open.stop.request_stop(); });
    return open.documents->Next(count);
  });
  py::list list(some.size());
  for (std::size_t i = 0; i < some.size(); ++i) list[i] = py::str(some[i]);
  return list;
}

}  // namespace

void AddDocuments(py::module_& module) {
  py::class_<DocumentsHandle>(module, "Documents")
      .def(py::init(&Open), py::arg("session"), py::arg("sources"), py::arg("template"))
      .def("next", &Next, py::arg("count"))
      .def_property_readonly("broken", [](const DocumentsHandle& self) { return self->documents->broken(); });
}

}  // namespace millrace::python

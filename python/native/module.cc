#include "python/native/module.h"

#include <pybind11/numpy.h>

#include "millrace/object/open/open.h"

namespace millrace::python {
namespace {

SessionHandle OpenSession(const std::string& endpoint_url, const std::string& region, const std::string& profile,
                          const std::string& ca_bundle, bool anonymous, std::uint64_t memory,
                          const std::string& log_level) {
  Logger log = Logger::Stderr(Unwrap(ParseLogLevel(log_level)));
  auto connection = Unwrap(object::OpenConnection({.endpoint_url = endpoint_url,
                                                   .region = region,
                                                   .profile = profile,
                                                   .ca_bundle = ca_bundle,
                                                   .no_sign_request = anonymous,
                                                   .log = log}));
  return SessionHandle(std::make_shared<Session>(std::move(connection), memory));
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "Millrace's core; use the package's own names instead.";
  module.attr("__version__") = MILLRACE_VERSION;
  TranslateErrors();
  // pybind11 looks numpy up for the first array, behind a guard of a local variable, and lets other threads run
  // meanwhile. Two threads that made the first arrays waited for each other: one for the interpreter's lock, and the
  // other, which had it, for the guard.
  (void)py::detail::npy_api::get();
  py::class_<SessionHandle>(module, "Session")
      .def(py::init(&OpenSession), py::kw_only(), py::arg("endpoint_url"), py::arg("region"), py::arg("profile"),
           py::arg("ca_bundle"), py::arg("anonymous"), py::arg("memory"), py::arg("log_level"));
  AddFiles(module);
  AddTokenizer(module);
  AddDataset(module);
  AddDocuments(module);
  AddCheckpoint(module);
}

}  // namespace millrace::python

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "millrace/base/process/cores.h"
#include "millrace/tokenizer/open/open.h"
#include "python/native/arrays.h"
#include "python/native/module.h"
#include "python/native/tokenizer.h"

namespace millrace::python {
namespace {

using tokenizer::TokenId;

TokenizerHandle Load(const SessionHandle& session, const std::string& url) {
  return {Interruptible<std::shared_ptr<const tokenizer::Tokenizer>>(
      [&](std::stop_token stop) -> Result<std::shared_ptr<const tokenizer::Tokenizer>> {
        const Logger log = Logger::Stderr(LogLevel::kWarning);
        return tokenizer::OpenTokenizer(*session->connection, url, log, {.stop = std::move(stop)});
      })};
}

Result<std::vector<TokenId>> EncodeOne(const tokenizer::Tokenizer& tokenizer, std::string_view text, bool bos,
                                       bool eos) {
  std::vector<TokenId> ids;
  if (bos && tokenizer.bos() != tokenizer::kNoToken) ids.push_back(tokenizer.bos());
  MR_TRY(tokenizer.Encode(text, ids));
  if (eos && tokenizer.eos() != tokenizer::kNoToken) ids.push_back(tokenizer.eos());
  return ids;
}

/// Returns the UTF-8 of a str, or the content of a bytes object. Borrows it from the object.
std::string_view TextOf(py::handle object) {
  if (PyBytes_Check(object.ptr())) {
    return {PyBytes_AS_STRING(object.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr()))};
  }
  if (!PyUnicode_Check(object.ptr())) throw py::type_error("text must be str or bytes");
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (!utf8) throw py::error_already_set();
  return {utf8, static_cast<std::size_t>(size)};
}

py::array Encode(const TokenizerHandle& self, const py::object& text, bool bos, bool eos) {
  std::string_view view = TextOf(text);
  Result<std::vector<TokenId>> ids;
  {
    const InterpreterUnlocked release;
    ids = EncodeOne(*self.tokenizer, view, bos, eos);
  }
  return AdoptArray(Unwrap(std::move(ids)));
}

/// With 0 threads: as many as this process may use cores.
py::list EncodeBatch(const TokenizerHandle& self, const std::vector<py::object>& texts, bool bos, bool eos,
                     int threads) {
  if (threads < 0 || threads > 512) Unwrap<void>(Fail(Code::kInvalidArgument, "threads must be 1 to 512"));
  if (threads == 0) threads = std::min(UsableCores(), 512);
  std::vector<std::string_view> views;
  for (const py::object& text : texts) views.push_back(TextOf(text));
  std::vector<Result<std::vector<TokenId>>> encoded(views.size());
  {
    const InterpreterUnlocked release;
    std::atomic<std::size_t> next = 0;
    auto work = [&] {
      for (std::size_t i; (i = next.fetch_add(1)) < views.size();) {
        encoded[i] = EncodeOne(*self.tokenizer, views[i], bos, eos);
      }
    };
    std::vector<std::jthread> others;
    for (int t = 1; t < threads && static_cast<std::size_t>(t) < views.size(); ++t) others.emplace_back(work);
    work();
  }
  py::list lists;
  for (auto& ids : encoded) lists.append(AdoptArray(Unwrap(std::move(ids))));
  return lists;
}

/// REQUIRES: `ids` is contiguous int32.
py::str Decode(const TokenizerHandle& self, const py::buffer& ids) {
  py::buffer_info buffer = ids.request();
  if (buffer.itemsize != sizeof(TokenId)) throw py::type_error("ids must be int32");
  std::span span(static_cast<const TokenId*>(buffer.ptr), static_cast<std::size_t>(buffer.size));
  Result<std::string> text;
  {
    const InterpreterUnlocked release;
    text = self.tokenizer->Decode(span);
  }
  std::string utf8 = Unwrap(std::move(text));
  PyObject* decoded = PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace");
  if (!decoded) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

}  // namespace

void AddTokenizer(py::module_& module) {
  auto special = [](TokenId (tokenizer::Tokenizer::*id)() const) {
    return [id](const TokenizerHandle& self) -> std::optional<TokenId> {
      TokenId token = ((*self.tokenizer).*id)();
      return token == tokenizer::kNoToken ? std::nullopt : std::optional(token);
    };
  };
  py::class_<TokenizerHandle>(module, "Tokenizer")
      .def(py::init(&Load), py::arg("session"), py::arg("url"))
      .def("encode", &Encode, py::arg("text"), py::arg("bos"), py::arg("eos"))
      .def("encode_batch", &EncodeBatch, py::arg("texts"), py::arg("bos"), py::arg("eos"), py::arg("threads"))
      .def("decode", &Decode, py::arg("ids"))
      .def("piece",
           [](const TokenizerHandle& self, TokenId id) { return py::bytes(Unwrap(self.tokenizer->Piece(id))); })
      .def_property_readonly("vocab_size", [](const TokenizerHandle& self) { return self.tokenizer->vocab_size(); })
      .def_property_readonly("bos", special(&tokenizer::Tokenizer::bos))
      .def_property_readonly("eos", special(&tokenizer::Tokenizer::eos))
      .def_property_readonly("unk", special(&tokenizer::Tokenizer::unk))
      .def_property_readonly("kind", [](const TokenizerHandle& self) { return std::string(self.tokenizer->kind()); })
      .def_property_readonly("fingerprint", [](const TokenizerHandle& self) { return self.tokenizer->fingerprint(); });
}

}  // namespace millrace::python

// The functions that add each file's bindings to the module. Call them in this order: later ones use earlier types.
#pragma once

#include <string>
#include <tuple>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/connection.h"
#include "python/native/support.h"

namespace millrace::python {

/// A connection to one endpoint with one identity, and the memory budget of everything that uses it.
struct Session {
  Session(std::unique_ptr<object::Connection> opened, std::uint64_t memory)
      : connection(std::move(opened)), budget(memory) {}
  std::unique_ptr<object::Connection> connection;
  MemoryBudget budget;
};
using SessionHandle = ProcessBound<Session>;

/// URL, weight, format, split.
using SourceTuple = std::tuple<std::string, double, std::string, std::string>;

void AddFiles(py::module_& module);
void AddTokenizer(py::module_& module);
void AddDataset(py::module_& module);
void AddDocuments(py::module_& module);
void AddCheckpoint(py::module_& module);

}  // namespace millrace::python

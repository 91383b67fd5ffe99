// What each file of bindings adds to the module, in an order in which later ones may name earlier types.
#pragma once

#include <string>
#include <tuple>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/connection.h"
#include "python/native/support.h"

namespace millrace::python {

/// One endpoint with one identity, and the memory that what stands on it may take.
struct Session {
  Session(std::unique_ptr<object::Connection> opened, std::uint64_t memory)
      : connection(std::move(opened)), budget(memory) {}
  std::unique_ptr<object::Connection> connection;
  MemoryBudget budget;
};
using SessionHandle = ProcessBound<Session>;

/// URL, weight, format.
using SourceTuple = std::tuple<std::string, double, std::string, std::string>;

void AddFiles(py::module_& module);
void AddTokenizer(py::module_& module);
void AddDataset(py::module_& module);
void AddDocuments(py::module_& module);
void AddCheckpoint(py::module_& module);

}  // namespace millrace::python

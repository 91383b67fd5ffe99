// Any table is refused or read within its bounds. Rows that are found in steps are those that are found at once. The
// first byte picks the dialect, the second one the length of the steps.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "millrace/data/formats/table.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::data;
  if (size < 2) return 0;
  const TableDialect dialect{.delimiter = (data[0] & 1) != 0 ? ',' : '\t',
                             .quotes = (data[0] & 2) != 0,
                             .has_header = (data[0] & 4) != 0,
                             .row_end = (data[0] & 8) != 0 ? '\r' : '\n'};
  const std::size_t step = data[1] + std::size_t{1};
  const std::string_view table(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto syntax = MakeTableSyntax(dialect, "a,b\tc");
  const auto splitter = syntax->NewSplitter();
  std::vector<std::size_t> ends;
  std::size_t at = 0;
  while (at < table.size()) {
    const auto end = splitter->Find(table.substr(at), 1, true);
    if (!end) break;
    if (!*end || **end == 0 || **end > table.size() - at) std::abort();
    auto made = syntax->ToLines(ToBuffer(table.substr(at, **end)), at);
    if (!made) std::abort();
    if (!made->empty() && !AsText(*made).ends_with('\n')) std::abort();
    (void)syntax->DescribeForm(table.substr(at, **end));
    at += **end;
    ends.push_back(at);
    splitter->Restart(at);
  }
  RowScanner scanner(dialect, 0);
  std::vector<std::size_t> stepped;
  for (std::size_t from = 0, known = 0; from < table.size();) {
    if (known == from) known = std::min(table.size(), known + step);
    if (auto end = scanner.Scan(table.substr(0, known), from)) stepped.push_back(*end);
    from = !stepped.empty() && stepped.back() > from ? stepped.back() : known;
  }
  if (!scanner.in_quotes() && (stepped.empty() || stepped.back() != table.size()) && !table.empty()) {
    stepped.push_back(table.size());
  }
  if (at == table.size() && stepped != ends) std::abort();
  return 0;
}

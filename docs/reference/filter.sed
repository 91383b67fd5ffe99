# How Doxygen reads our headers: the comment at the top describes the file, and comparisons need no words of their own.
# What is inserted takes the line of #pragma once, so that Doxygen tells the right lines.
1s|^// |/// \\file\n// |
1,/^#pragma once/ {
  s|^// |/// |
  s|\n// |\n/// |
  s|^//$|///|
  /^#pragma once$/d
}
s|^( *.*operator(==\|<=>)\(const .* = default;)$|\1  ///< member by member|

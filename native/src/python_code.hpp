// Machine code as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

namespace tierup {

void bind_code(nanobind::module_& module);

}  // namespace tierup

// Products as Python asks for them.
#pragma once

#include <nanobind/nanobind.h>

namespace tierup {

void bind_product(nanobind::module_& module);

}  // namespace tierup

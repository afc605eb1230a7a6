"""What a rank does in a step, and what its memory holds."""

from ..language import N_

PHASES = N_("input"), N_("forward"), N_("backward"), N_("gradients"), N_("optimizer")
INPUT, FORWARD, BACKWARD, GRADIENTS, OPTIMIZER = PHASES
COMMUNICATION, WAIT = N_("communication"), N_("wait")

PARAMETERS, STATE, ACTIVATIONS = N_("parameters"), N_("optimizer state"), N_("activations")
CASTS, GATHERED, OTHER = N_("cast weights"), N_("gathered weights"), N_("other")
MEMORY = PARAMETERS, STATE, GRADIENTS, CASTS, GATHERED, ACTIVATIONS, OTHER

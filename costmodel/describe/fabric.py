"""Constants of the collective library on one link, as fitted to published sweeps."""

from pydantic import BaseModel, ConfigDict


class FabricConstants(BaseModel):
    """Fitted constants of one link; none yet."""

    model_config = ConfigDict(extra="forbid", frozen=True)
